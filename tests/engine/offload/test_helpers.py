"""Helper processes: what they do for the server, and what they may not."""

import asyncio
import gc
import os
import subprocess
import sys

import psutil
import pytest
from tests.engine.offload import heavy_work

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import BadRequest, InternalError, PayloadTooLarge


@pytest.fixture
def helpers(monkeypatch, request):
    """One helper at a time, of 200 MB, which finds the tests' own work."""
    path = os.pathsep.join(filter(None, (str(request.config.rootpath), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    made = Helpers("test", 1, 200 << 20, PayloadTooLarge)
    yield made
    made.close()


MODULES = "surface.inference.v1 surface.inference.v2 ext.grpc.tensors ext.openai.codec models.reading"
FOREIGN = "modelserver.engine.batching modelserver.surface.http.content python_multipart starlette uvicorn"


@pytest.mark.parametrize("module", MODULES.split())
def test_helpers_start_quickly(module):
    """What they import for their work brings nothing of the server that they do not need."""
    code = f"import sys, modelserver.engine.offload.process, modelserver.{module}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(FOREIGN.split()).isdisjoint(ended.stdout.split())


async def test_results_and_errors_are_returned(helpers):
    first = await helpers.call(5.0, heavy_work.whoami)

    assert await helpers.call(5.0, heavy_work.double, b"a" * 100_000, None) == [b"a" * 100_000] * 2
    with pytest.raises(BadRequest, match="as it was told"):
        await helpers.call(5.0, heavy_work.refuse, "as it was told")
    assert await helpers.call(5.0, heavy_work.whoami) == first != os.getpid()


async def test_unforeseen_errors_are_reported(helpers, caplog):
    with pytest.raises(InternalError, match="its log says why"):
        await helpers.call(5.0, heavy_work.fail, "secret")

    assert "ValueError: secret" in caplog.text


async def test_time_is_bounded(helpers):
    """A helper that uses more processor time than its call may is ended; the next call has another."""
    with pytest.raises(PayloadTooLarge, match=r"more than 0\.1 s of CPU time"):
        await helpers.call(0.1, heavy_work.spin)

    assert await helpers.call(5.0, heavy_work.double, b"a", 1) == [b"a"]


async def test_memory_is_bounded(helpers):
    """What needs more memory than a helper may have is refused, and takes none of the server's."""
    before = await helpers.call(5.0, heavy_work.whoami)

    with pytest.raises(PayloadTooLarge, match="more memory"):
        await helpers.call(5.0, heavy_work.fill, 1 << 30)
    assert await helpers.call(5.0, heavy_work.whoami) != before


async def test_helpers_that_ended_are_replaced(helpers):
    """One that has ended by itself, as idle ones do, is replaced; one that ends in each try is an error."""
    first = await helpers.call(5.0, heavy_work.whoami)
    psutil.Process(first).kill()

    assert await helpers.call(5.0, heavy_work.whoami) != first
    with pytest.raises(InternalError, match="ended with status 0"):
        await helpers.call(5.0, heavy_work.leave)


async def test_cancelled_calls_release_their_bodies(helpers):
    await helpers.call(5.0, heavy_work.whoami)
    body = b"a" * 100_000
    before = sys.getrefcount(body)
    busy = asyncio.ensure_future(helpers.call(0.1, heavy_work.spin))
    await asyncio.sleep(0.05)
    busy.cancel()
    for _ in range(20):
        waiting = asyncio.ensure_future(helpers.call(5.0, heavy_work.double, body, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    del waiting

    assert sys.getrefcount(body) == before
    assert await helpers.call(5.0, heavy_work.double, b"a", 1) == [b"a"]


async def test_calls_that_are_refused(helpers):
    text = "a" * 100_000
    before = sys.getrefcount(text)
    gc.disable()
    try:
        with pytest.raises(BadRequest):
            await helpers.call(5.0, heavy_work.refuse, text)
        # The thread drops its work after the answer.
        await helpers.call(5.0, heavy_work.whoami)

        assert sys.getrefcount(text) == before
    finally:
        gc.enable()


async def test_calls_after_the_end(helpers):
    helpers.close()

    with pytest.raises(InternalError, match="was stopped with the server"):
        await helpers.call(5.0, heavy_work.whoami)


async def test_helpers_end_with_the_server(helpers):
    process = psutil.Process(await helpers.call(5.0, heavy_work.whoami))
    busy = asyncio.ensure_future(helpers.call(60.0, heavy_work.spin))
    await asyncio.sleep(0.1)

    helpers.close()

    with pytest.raises(InternalError):
        await busy
    assert not process.is_running()
