"""A model server for PyTorch with batching built in and TorchServe's APIs.

``Handler`` is the base class for handlers, ``ContentType`` what their annotations may declare, and ``serve``
serves one from a script. ``ChatModel``, ``EmbeddingModel`` and ``Reranker`` are served behind OpenAI's API,
``AsgiModel`` serves an ASGI application.
They are imported when they are first used: this package itself imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelserver.tools.serve.script import serve as serve
    from modelserver_handlers.asgi import AsgiModel as AsgiModel
    from modelserver_handlers.language.chat import ChatModel as ChatModel
    from modelserver_handlers.language.embedding import EmbeddingModel as EmbeddingModel
    from modelserver_handlers.language.embedding import Reranker as Reranker
    from modelserver_handlers.typed.handler import Handler as Handler
    from modelserver_handlers.typed.signature import ContentType as ContentType

__version__ = "0.1.0"

_PUBLIC = {
    "AsgiModel": "modelserver_handlers.asgi",
    "ChatModel": "modelserver_handlers.language.chat",
    "EmbeddingModel": "modelserver_handlers.language.embedding",
    "Reranker": "modelserver_handlers.language.embedding",
    "ContentType": "modelserver_handlers.typed.signature",
    "Handler": "modelserver_handlers.typed.handler",
    "serve": "modelserver.tools.serve.script",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
