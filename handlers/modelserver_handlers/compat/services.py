"""The services before handlers, from which some archives still derive theirs (reference 13)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class ModelService:
    """A handler that knows its model's name, folder and manifest."""

    def __init__(
        self, model_name: str, model_dir: str, manifest: dict[str, Any], gpu: int | None = None
    ) -> None:
        self.model_name = model_name
        self.model_dir = model_dir
        self.manifest = manifest
        self.gpu = gpu
        self._context: Any = None
        self._signature: Any = None

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
