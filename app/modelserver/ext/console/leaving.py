"""Clients of the console that leave before their response."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request


async def is_there_for(outcome: asyncio.Future[Any], request: Request) -> bool:
    """Waits for the outcome while the client is there; False if it left before.

    The body of the request has been read.
    """
    # After the body, the only message is that the client has left.
    leaving = asyncio.ensure_future(request.receive())
    try:
        outcomes: set[asyncio.Future[Any]] = {outcome, leaving}
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return outcome.done()
