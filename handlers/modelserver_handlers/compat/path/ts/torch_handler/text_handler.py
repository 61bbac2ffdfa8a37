"""The base of handlers of texts."""

from __future__ import annotations

from modelserver_handlers.base import BaseHandler  # noqa: F401 - as in TorchServe
from modelserver_handlers.contractions import CONTRACTION_MAP  # noqa: F401 - as in TorchServe
from modelserver_handlers.text_handler import TextHandler
from modelserver_handlers.text_utils import get_tokenizer  # noqa: F401 - as in TorchServe
from modelserver_handlers.utilities import CLEANUP_REGEX  # noqa: F401 - as in TorchServe

__all__ = ["TextHandler"]
