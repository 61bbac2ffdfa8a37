import asyncio

from modelserver.errors import BadRequest, InternalError, ModelServerError, ServiceUnavailable
from modelserver.surface.http.off_loop import MOST_WAITING, OffLoop


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()


async def _raise(error: Exception) -> None:
    raise error


async def test_bytes_that_wait_are_bounded():
    """One may be as large as it is; more are refused where they are too much together (F31)."""
    off_loop, gate = OffLoop(1), asyncio.Event()
    failed: list[ModelServerError] = []
    off_loop.start(2 * MOST_WAITING, _wait(gate), failed.append)
    assert failed == []

    off_loop.start(1, _wait(gate), failed.append)
    assert [type(error) for error in failed] == [ServiceUnavailable]

    gate.set()
    await off_loop.settle(5.0)
    off_loop.start(1, _wait(gate), failed.append)
    await off_loop.settle(5.0)
    assert len(failed) == 1


async def test_failures_become_answers():
    off_loop = OffLoop(1)
    failed: list[ModelServerError] = []
    for error in (BadRequest("no"), ValueError("secret")):
        off_loop.start(1, _raise(error), failed.append)
    end = off_loop.start(1, _wait(asyncio.Event()), failed.append)
    end()
    await off_loop.settle(5.0)

    assert off_loop._waiting == 0
    assert [type(error) for error in failed] == [BadRequest, InternalError]
    assert "secret" not in failed[1].message
