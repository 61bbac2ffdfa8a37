import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest
from tests.waiting import until

from modelserver.errors import ModelNotFound
from modelserver.ext.grpc.framing import CallRefused
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.server import MOST, MOST_OF_CLIENT, HealthService
from modelserver.ext.grpc.statuses import StatusCode

_SERVING, _NOT_SERVING, _UNKNOWN = 1, 2, 3


class Registry:
    def __init__(self):
        self.healthy = True
        self.pool = SimpleNamespace(ready=False)

    def names(self):
        return ["m"]

    def is_ready(self, name):
        return bool(self.pool.ready)


def question(service=""):
    return message("grpc.health.v1.HealthCheckRequest")(service=service)


def call(client=1):
    return SimpleNamespace(client=f"127.0.0.1:{client}")


@pytest.fixture
def registry():
    """Of a healthy server, whose model is not ready."""
    return Registry()


@pytest.fixture
def stopping():
    return asyncio.Event()


@pytest.fixture
def service(registry, stopping):
    return HealthService(registry, ["own.Service"], stopping)


async def test_server_and_models_have_their_state(service, stopping):
    context = None

    async def statuses():
        names = ("", "own.Service", "grpc.health.v1.Health", "m")
        return [(await service.check(question(name), context)).status for name in names]

    assert await statuses() == [_SERVING] * 3 + [_NOT_SERVING]
    with pytest.raises(ModelNotFound, match="other"):
        await service.check(question("other"), context)
    stopping.set()
    assert await statuses() == [_NOT_SERVING] * 4


async def test_changes_are_watched_until_the_end(service, registry, stopping, monkeypatch):
    monkeypatch.setattr("modelserver.ext.grpc.server.EVERY", 0.001)
    watched = service.watch(question("m"), call())
    seen = [(await anext(watched)).status]
    registry.pool.ready = True
    seen.append((await anext(watched)).status)
    asyncio.get_running_loop().call_later(0.01, stopping.set)
    seen += [answer.status async for answer in watched]

    assert seen == [_NOT_SERVING, _SERVING, _NOT_SERVING]
    assert [answer.status async for answer in service.watch(question("no"), call())] == [_UNKNOWN]


async def test_many_watchers_share_one_look(service, monkeypatch):
    monkeypatch.setattr("modelserver.ext.grpc.server.EVERY", 0.01)
    watched = [
        service.watch(question(("", "m")[each % 2]), call(each // MOST_OF_CLIENT)) for each in range(MOST)
    ]
    for each in watched:
        await anext(each)
    waiting = [asyncio.ensure_future(anext(each)) for each in watched]
    looked = []
    look = service._status
    monkeypatch.setattr(service, "_status", lambda name: looked.append(name) or look(name))
    await until(lambda: len(looked) >= 4)
    assert len(looked) < 100
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)

    await until(lambda: service._looking is None and len(asyncio.all_tasks()) == 1)
    assert not service._watchers


@pytest.mark.parametrize(("of_client", "count"), [(MOST_OF_CLIENT + 1, MOST_OF_CLIENT), (1, MOST)])
async def test_watchers_are_bounded(service, of_client, count):
    """A client may have some on its connection, and all clients some together, until one of them leaves."""
    watched = [service.watch(question(), call(each // of_client)) for each in range(count)]
    for each in watched:
        await anext(each)
    refused = service.watch(question(), call(count // of_client))
    with pytest.raises(CallRefused, match="1000") as error:
        await anext(refused)
    assert error.value.code is StatusCode.RESOURCE_EXHAUSTED

    assert isinstance(watched[0], AsyncGenerator)
    await watched[0].aclose()
    assert (await anext(service.watch(question(), call(count // of_client)))).status == _SERVING
