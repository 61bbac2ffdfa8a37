"""Tiny models with random weights, made on the spot."""

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PIECES = 1000
# Fails for a role that it does not know.
TEMPLATE = (
    "{% for message in messages %}\n"
    "{% if message.role == 'judge' %}{{ raise_exception('no judges') }}{% endif %}\n"
    "<|{{ message.role }}|>{{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_llama(folder, width=256, layers=4, length=512):
    """A Llama whose tokenizer has read the documentation and has a template; usually 3 million weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    _save_tokenizer(folder, TEMPLATE)
    config = LlamaConfig(
        vocab_size=PIECES,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=length,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_bert(folder, *, scores):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(0)
    _save_tokenizer(folder, None)
    config = BertConfig(
        vocab_size=PIECES,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        num_labels=1,
    )
    (BertForSequenceClassification if scores else BertModel)(config).save_pretrained(folder)
    return folder


def _save_tokenizer(folder, template):
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    texts = (path.read_text("utf-8") for path in sorted(DOCS.glob("*.md")))
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=PIECES, special_tokens=["<s>", "</s>"])
    trained.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    if template is not None:
        tokenizer.chat_template = template
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
