"""Handlers for models of the Hugging Face hub, which the library ``transformers`` computes.

An archive names one as ``modelserver_handlers.huggingface:Embeddings``, and its model in model-config.yaml,
as ``handler: {model_path: FOLDER}``. Importing this does not import transformers.
"""

from __future__ import annotations

from modelserver_handlers.huggingface.embeddings import Embeddings, Reranking
from modelserver_handlers.huggingface.generation import TextGeneration
from modelserver_handlers.huggingface.pipelines import TaskPipeline

__all__ = ["Embeddings", "Reranking", "TaskPipeline", "TextGeneration"]
