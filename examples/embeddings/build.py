"""Makes a model for embeddings as the Hugging Face hub has them, without any download.

Its weights are random. It still finds texts with the same words: each word has a vector of its own, and a
text the mean of what the network makes of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SENTENCES = Path(__file__).with_name("sentences.txt")


def build(folder: Path) -> None:
    """Writes configuration, weights and tokenizer."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=2000, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    words.train([str(SENTENCES)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", model_max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
    )
    BertModel(config).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)
