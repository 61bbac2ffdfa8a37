"""Tests on several kinds of event loops."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine


def on_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a test on the fixture's loop."""

    def run(loop: asyncio.AbstractEventLoop, **arguments: Any) -> None:
        loop.run_until_complete(test(**arguments))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    signature = inspect.signature(test)
    parameter = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[parameter, *signature.parameters.values()]
    )
    return run
