"""A context for tests of handlers."""

from __future__ import annotations

from modelserver_handlers.compat.mock_context import MockContext

__all__ = ["MockContext"]
