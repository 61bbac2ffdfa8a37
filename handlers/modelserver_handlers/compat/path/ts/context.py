"""What a handler knows about its model and its batch."""

from __future__ import annotations

from modelserver_handlers.context import Context, RequestProcessor

__all__ = ["Context", "RequestProcessor"]
