"""Words of a text."""

from __future__ import annotations

from modelserver_handlers.text_utils import get_tokenizer, ngrams_iterator

__all__ = ["get_tokenizer", "ngrams_iterator"]
