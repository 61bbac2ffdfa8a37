import asyncio
from types import SimpleNamespace

from tests.waiting import until

from modelserver.ext.collector.extension import watch_system


async def test_the_host_is_read_at_its_interval():
    """At once and then again and again, also after a reading that failed."""
    read = []
    failures = [OSError("no such file")]

    def reading():
        if read and failures:
            raise failures.pop()
        return object()

    watching = asyncio.create_task(
        watch_system(SimpleNamespace(read=reading), SimpleNamespace(system=read.append), 0.01)
    )
    await until(lambda: len(read) >= 3)
    watching.cancel()

    assert failures == []
