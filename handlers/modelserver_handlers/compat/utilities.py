"""What handlers import from ``ts.utils.util`` and ``ts.handler_utils.utils``, and the services that came
before handlers (reference 13.1, 13.2).
"""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from modelserver_handlers import streaming

Function = TypeVar("Function", bound=Callable[..., Any])

CLEANUP_REGEX = re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
"""Tags and entities of HTML."""


def get_yaml_config(yaml_file_path: str | Path) -> Any:
    """The document in a YAML file, read without running code."""
    return yaml.safe_load(Path(yaml_file_path).read_text(encoding="utf-8"))


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Function], Function]:
    """Decorator: each call warns that the function is deprecated, and says what to use instead."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            moved = f" and moved to {replacement}" if replacement else ""
            text = f"{function.__name__} is deprecated in {version}{moved}"
            warnings.warn(text, klass, stacklevel=2)
            return function(*args, **kwargs)

        return cast("Function", run)

    return decorate


send_intermediate_predict_response = deprecated(
    "0.9", "ts.handler_utils.utils.send_intermediate_predict_response"
)(streaming.send_intermediate_predict_response)
"""Streaming under its old name (``ts.protocol.otf_message_handler``)."""


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """The class ``package.module.Class``, in ``module_prefix`` if given.

    Raises ImportError with TorchServe's texts.
    """
    if not class_name:
        raise ImportError("class name is not defined")
    path, _, name = class_name.rpartition(".")
    module_name = ".".join(part for part in (module_prefix, path) if part)
    if not module_name:
        raise ImportError("module name is not defined.")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"class:{name} not found in module:{module_name}.") from None


@dataclass(eq=False)
class ModelService:
    """A handler that knows its model's name, folder and manifest."""

    model_name: str
    model_dir: str
    manifest: dict[str, Any]
    gpu: int | None = None
    _context: Any = field(default=None, init=False, repr=False)
    _signature: Any = field(default=None, init=False, repr=False)

    def initialize(self, context: Any) -> None:
        """Keep the context."""
        self._context = context

    def inference(self, data: Any) -> Any:
        """The answers to a batch, for subclasses to implement."""
        raise NotImplementedError("inference must be implemented by a subclass")

    def ping(self) -> str:
        """The service's health."""
        return "healthy"

    def signature(self) -> Any:
        """The manifest's signature, if there is one."""
        return self._signature

    def handle(self, data: Any, context: Any) -> Any:
        """Answer a batch; nothing for the call without data."""
        self._context = context
        return None if data is None else self.inference(data)


class SingleNodeService(ModelService, ABC):
    """A service in three steps."""

    def inference(self, data: Any) -> Any:
        """Through ``_preprocess``, ``_inference`` and ``_postprocess``."""
        return self._postprocess(self._inference(self._preprocess(data)))

    @abstractmethod
    def _inference(self, data: Any) -> Any:
        """The network's outputs."""

    def _preprocess(self, data: Any) -> Any:
        return data

    def _postprocess(self, data: Any) -> Any:
        return data
