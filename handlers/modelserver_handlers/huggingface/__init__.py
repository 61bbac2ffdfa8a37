"""Handlers for models of the Hugging Face hub, which the library ``transformers`` computes.

An archive names one as ``modelserver_handlers.huggingface:Embeddings``, and its model in model-config.yaml,
as ``handler: {model_path: FOLDER}``. Importing this does not import transformers.
"""

from __future__ import annotations

import contextlib

from modelserver_handlers.huggingface.checkpoint import import_transformers
from modelserver_handlers.huggingface.embeddings import Embeddings, Reranking
from modelserver_handlers.huggingface.generation import TextGeneration
from modelserver_handlers.huggingface.pipelines import TaskPipeline

__all__ = ["Embeddings", "Reranking", "TaskPipeline", "TextGeneration", "preload"]


def preload() -> None:
    """Imports what all networks of transformers need, which takes seconds, for workers forked afterwards."""
    # Without it, or with one that does not fit, the worker reports the reason when it loads.
    with contextlib.suppress(Exception):
        library = import_transformers()
        for name in ("PreTrainedModel", "GenerationMixin", "PreTrainedTokenizerFast", "pipeline"):
            getattr(library, name)
