"""Models of the Hugging Face hub in miniature, with random weights, made on the spot."""

import json
from typing import Any

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs",
    "a server answers requests in batches",
]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)
_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def tokenizer(folder, *, length=64, **more):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=_SPECIAL, show_progress=False)
    inner.train_from_iterator(TEXTS * 3, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIAL, strict=True)
    made = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=length, **{**dict(names), **more})
    made.save_pretrained(folder)
    return made


def bert(folder, head, **config):
    """A BERT with a head such as ``ForMaskedLM``."""
    import torch
    import transformers

    torch.manual_seed(0)
    made = tokenizer(folder)
    settings = transformers.BertConfig(
        vocab_size=len(made), max_position_embeddings=64, **{**_BERT, **config}
    )
    network = getattr(transformers, f"Bert{head}")(settings).eval()
    # Larger than usual, so that answers differ.
    for parameter in network.parameters():
        parameter.data *= 5
    network.save_pretrained(folder)
    return network


def llama(folder, *, template=TEMPLATE, broken=""):
    """A Llama that answers chats, if there is a template; its logits after the token ``broken`` are NaN."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = tokenizer(folder, eos_token="[SEP]", chat_template=template)
    settings = LlamaConfig(
        vocab_size=len(made), max_position_embeddings=64, eos_token_id=3, bos_token_id=2, **_BERT
    )
    network = LlamaForCausalLM(settings).eval()
    if broken:
        network.get_input_embeddings().weight.data[made.convert_tokens_to_ids(broken)] = torch.nan
    network.save_pretrained(folder)
    return network


def vit(folder):
    """A ViT for pictures of 8 x 8 pixels in three classes."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    labels = {0: "cat", 1: "dog", 2: "fox"}
    settings = ViTConfig(image_size=8, patch_size=4, id2label=labels, **_BERT)
    network = ViTForImageClassification(settings).eval()
    network.save_pretrained(folder)
    size = {"height": 8, "width": 8}
    processor = {"image_processor_type": "ViTImageProcessor", "size": size, "do_resize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return network


def yolos(folder):
    """A YOLOS that finds three things in pictures, all over the place."""
    import torch
    from transformers import YolosConfig, YolosForObjectDetection

    torch.manual_seed(0)
    settings = YolosConfig(
        image_size=[16, 16],
        patch_size=4,
        num_detection_tokens=3,
        num_labels=4,
        use_mid_position_embeddings=False,
        **_BERT,
    )
    network = YolosForObjectDetection(settings).eval()
    network.save_pretrained(folder)
    size = {"shortest_edge": 16, "longest_edge": 32}
    processor = {"image_processor_type": "YolosImageProcessor", "size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return network


def wav2vec2(folder, head="ForSequenceClassification"):
    """A Wav2Vec2 for sound of 1,000 samples a second; ``ForCTC``: it hears letters."""
    import torch
    import transformers
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

    torch.manual_seed(0)
    labels = 3
    if head == "ForCTC":
        vocabulary = {letter: place for place, letter in enumerate(["<pad>", "<unk>", "|", *"abcdefgh"])}
        (folder / "letters.json").write_text(json.dumps(vocabulary))
        special: dict[str, Any] = {"bos_token": None, "eos_token": None}
        Wav2Vec2CTCTokenizer(str(folder / "letters.json"), **special).save_pretrained(folder)
        labels = len(vocabulary)
    settings = Wav2Vec2Config(
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2,
        classifier_proj_size=8,
        num_labels=labels,
        vocab_size=labels,
        pad_token_id=0,
        **_BERT,
    )
    network = getattr(transformers, f"Wav2Vec2{head}")(settings).eval()
    network.save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=1000).save_pretrained(folder)
    return network


def whisper(folder):
    """A Whisper for sound of 16,000 samples a second, of which it hears a second at a time."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    torch.manual_seed(0)
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(TEXTS, vocab_size=300, show_progress=False)
    names = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    made = transformers.WhisperTokenizer(*pieces.save_model(str(folder)), pad_token=names[0])
    made.add_special_tokens({"additional_special_tokens": names})
    made.add_tokens([f"<|{moment / 50:.2f}|>" for moment in range(51)])
    made.save_pretrained(folder)
    end, start, plain = made.convert_tokens_to_ids(names)
    settings = transformers.WhisperConfig(
        vocab_size=len(made),
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=50,
        max_target_positions=300,
        decoder_start_token_id=start,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    network = transformers.WhisperForConditionalGeneration(settings).eval()
    for parameter in network.parameters():
        parameter.data *= 5
    more = {"is_multilingual": False, "no_timestamps_token_id": plain, "max_new_tokens": 12}
    vars(network.generation_config).update(_from_model_config=False, **more)
    network.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(8, chunk_length=1).save_pretrained(folder)
    return network
