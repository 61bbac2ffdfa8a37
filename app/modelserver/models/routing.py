"""Which version of a model answers a request that names none: by itself, the default version."""

from __future__ import annotations

from typing import Any, Protocol


class Router(Protocol):
    """Gives models their :class:`~modelserver.models.version.ModelRouter`; an extension sets one."""

    def check(self, document: Any) -> None:
        """Raises BadRequest for a document that no versions of a model could carry out. In any thread."""

    def direct(self, name: str, document: Any, reason: str = "") -> None:
        """Divides the requests for a model as the document says; None: as if it had never been divided.

        ``reason``: why what goes on by itself ends. Raises BadRequest for a document that the model's
        versions cannot carry out.
        """


class DefaultRouter:
    """Leaves all requests to the default versions."""

    def check(self, document: Any) -> None:
        """Accepts any document, which has no effect."""

    def direct(self, name: str, document: Any, reason: str = "") -> None:
        """Does nothing."""
