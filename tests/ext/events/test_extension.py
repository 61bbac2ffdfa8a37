import asyncio
import logging
from types import SimpleNamespace

from tests.waiting import until

from modelserver.ext.events.extension import Extension
from modelserver.ext.events.store import FILE


def host_of(tmp_path, **settings):
    """What it adds is in its lists."""
    host = SimpleNamespace(tasks=[], settles=[], added=[], registry=())
    host.settings = SimpleNamespace(model_store=tmp_path, log_files=True, **settings)
    host.run, host.settle = host.tasks.append, host.settles.append
    host.routes = lambda role, add: host.added.append((role, add))
    return host


async def test_what_is_logged_is_in_the_file_soon_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_LOCATION", str(tmp_path))
    extension, host = Extension(), host_of(tmp_path)
    await extension.open(host)
    write, watch = (asyncio.ensure_future(task()) for task in host.tasks)
    log, file = logging.getLogger("modelserver.somewhere"), tmp_path / FILE
    log.warning("The first")
    await until(lambda: file.exists() and "The first" in file.read_text())
    await host.settles[0](1.0)
    await write
    log.warning("The last")
    watch.cancel()
    await extension.close(1.0)
    log.warning("Nobody listens any more")

    assert [role for role, _ in host.added] == ["management"]
    lines = file.read_text().split("\n")
    assert ["The first" in lines[1], "The last" in lines[2], len(lines)] == [True, True, 4]
    assert extension._store not in logging.getLogger().handlers
