import asyncio
import logging
from contextlib import AsyncExitStack
from types import SimpleNamespace

from tests.waiting import until

from modelserver.ext.events.extension import extend
from modelserver.ext.events.store import FILE


def host_of(tmp_path, **settings):
    """What it adds is in its lists."""
    host = SimpleNamespace(tasks=[], settles=[], added=[], registry=(), closing=AsyncExitStack())
    host.settings = SimpleNamespace(model_store=tmp_path, log_files=True, **settings)
    host.run, host.settle = host.tasks.append, host.settles.append
    host.routes = lambda *routes: host.added.append(routes)
    return host


async def test_what_is_logged_is_in_the_file_soon_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_LOCATION", str(tmp_path))
    host = host_of(tmp_path)
    await extend(host)
    write, watch = (asyncio.ensure_future(task()) for task in host.tasks)
    log, file = logging.getLogger("modelserver.somewhere"), tmp_path / FILE
    log.warning("The first")
    await until(lambda: file.exists() and "The first" in file.read_text())
    await host.settles[0](1.0)
    await write
    log.warning("The last")
    watch.cancel()
    await host.closing.aclose()
    log.warning("Nobody listens any more")

    ((role, _, store, _),) = host.added
    assert role == "management"
    lines = file.read_text().split("\n")
    assert ["The first" in lines[1], "The last" in lines[2], len(lines)] == [True, True, 4]
    assert store not in logging.getLogger().handlers
