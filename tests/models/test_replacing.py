import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.models.conftest import register
from tests.waiting import until

from modelserver.errors import BadRequest, Conflict, ModelNotFound, OutOfMemory, StartFailed
from modelserver.models import replacing as replacing_module
from modelserver.models.changes import Change
from modelserver.models.options.resolve import ModelOptions, Registration
from modelserver.models.replacing import check_room, load_anew, replace_archive, taken_over, worker_count

MIB = 1 << 20


def running(registration=None, workers=(1, 1), **options):
    """A version with these options, all of which somebody asked for, unless ``sources`` says otherwise."""
    options.setdefault("sources", dict.fromkeys(options, "register parameter"))
    return cast(
        "Any",
        SimpleNamespace(
            name="m",
            version="1.0",
            options=ModelOptions(**options),
            registration=registration or Registration(url="old.mar"),
            pool=SimpleNamespace(
                min_workers=workers[0],
                max_workers=workers[1],
                crew=SimpleNamespace(spec=SimpleNamespace(need=600 * MIB, launcher=None)),
                workers=[SimpleNamespace(process=SimpleNamespace(pids=[1, 2]))] * workers[0],
            ),
        ),
    )


def test_requested_values_stay():
    """TorchServe's marks for "not given" do not replace them. Trust is never taken over."""
    old = Registration(url="old.mar", handler="h.py:serve", batch_size=2, split_instances="true")
    batches = {"batch_size": 8, "max_batch_delay": 20, "batch_policy": "window"}
    before = running(old, **batches, response_timeout=9)
    after = taken_over(before, Registration(url="new.mar"))

    assert (after.url, after.model_name, after.handler) == ("new.mar", "m", "h.py:serve")
    assert (after.batch_size, after.max_batch_delay, after.batch_policy) == (8, 20, "window")
    assert (after.response_timeout, after.startup_timeout, after.split_instances) == (9, None, "true")

    before = running(Registration(url="old.mar", handler="h.py:serve"), batch_size=8, response_timeout=9)
    new = Registration(url="new.mar", handler="new.py:serve", batch_size=4, response_timeout=-1)
    after = taken_over(before, new)

    assert (after.handler, after.batch_size, after.response_timeout) == ("new.py:serve", 4, 9)

    before = running(Registration(url="/opt/old", trusted=True))

    assert not taken_over(before, Registration(url="/opt/new")).trusted


@pytest.mark.parametrize("source", ["model-config.yaml", "models= in config.properties", "default"])
def test_values_that_nobody_requested_come_with_the_new_archive(source):
    after = taken_over(running(batch_size=8, sources={"batch_size": source}), Registration(url="new.mar"))
    assert after.batch_size is None


def test_a_batcher_stays_one():
    """A version that was registered in KServe's words keeps them, so that V1 answers keep their form."""
    before = running(Registration(url="old.mar", max_batch_size=8, timeout=30), batch_size=8)
    after = taken_over(before, Registration(url="new.mar", batch_size=16))
    assert (after.max_batch_size, after.batch_size, after.timeout, after.has_batcher) == (16, None, 30, True)


@pytest.mark.parametrize(
    ("now", "named", "expected"),
    [
        ((2, 4), {}, (2, 4)),
        ((0, 0), {}, (0, 0)),
        ((2, 4), {"min_workers": 3}, (3, 3)),
        ((2, 4), {"initial_workers": 3, "max_workers": 5}, (3, 5)),
        ((2, 4), {"max_workers": 1}, (1, 1)),
    ],
)
def test_number_of_workers_stays_unless_named(now, named, expected):
    after = taken_over(running(workers=now), Registration(url="new.mar", **named))
    assert (after.min_workers, after.max_workers) == expected


@pytest.mark.parametrize(
    ("workers", "need", "used", "available", "fits"),
    [
        (2, 600, 100, 200, True),
        (2, 600, 100, 199, False),
        (1, 900, 100, 399, False),
        (1, 900, 100, 400, True),
        (1, 600, 0, 599, False),
        (0, 600, 100, 0, True),
    ],
)
def test_replacement_needs_memory_for_both(workers, need, used, available, fits, monkeypatch):
    """All ranks of a worker count, and what their descendants share with none; workers elsewhere do not."""

    def memory(pid, alone=False):
        assert alone == (pid in (3, 4))
        return used * MIB // 4

    monkeypatch.setattr(replacing_module, "family_of", lambda pids: [*pids, 3, 4])
    monkeypatch.setattr(replacing_module, "worker_memory", memory)
    monkeypatch.setattr(replacing_module, "available_memory", lambda: available * MIB)
    before, after = running(), running(min_workers=workers, max_workers=workers)
    after.pool.crew.spec.need = need * MIB
    if fits:
        check_room(before, after)
        return
    with pytest.raises(OutOfMemory, match=rf"need about \d+ MiB, but {available} MiB are available"):
        check_room(before, after)
    after.pool.crew.spec.launcher = object()
    check_room(before, after)


@pytest.mark.parametrize(("bounds", "count"), [((1, 8), 3), ((4, 8), 4), ((1, 2), 2), ((0, 0), 0)])
def test_as_many_workers_as_there_are(bounds, count):
    after = running(min_workers=bounds[0], max_workers=bounds[1])
    assert worker_count(running(workers=(3, 8)), after) == count


async def replacing(registry, before, url, **more):
    built = registry.builder.built
    count = len(built)
    registration = Registration(url=url, model_name="m", **{"initial_workers": 1, **more})
    task = asyncio.create_task(load_anew(registry, before, registration))
    await until(lambda: len(built) > count)
    return task


def replacement(builder):
    return builder.built[-1]


@pytest.mark.parametrize("version", ["1.0", "3.0"])
async def test_a_model_is_replaced(registry, builder, version):
    """The old one serves until the new one is loaded; then that has its place, as the default too (F52)."""
    before = await register(registry, "m-1.0.mar")
    history = before.histories["seen"] = SimpleNamespace(replaced=lambda: replaced.append(version))
    replaced = []
    other = await register(registry, "m-2.0.mar")
    task = await replacing(registry, before, f"m-{version}.mar")
    assert registry.get("m") is before
    assert not before.pool.closed
    replacement(builder).pool.loaded.set_result(None)
    after = await task
    await until(lambda: not registry.retiring)

    assert registry.get("m") is registry.get("m", version) is after
    assert registry.versions("m") == [after, other]
    assert before.pool.successor is after.pool
    assert before.pool.closed
    assert before.archive.closed
    assert not before.archive.removed
    assert (after.histories, replaced) == ({"seen": history}, [version])


async def test_a_failed_replacement_changes_nothing(registry, builder):
    """What was there goes on serving; what was built for the other is gone (F52)."""
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-1.0.mar")
    failed = replacement(builder)
    failed.pool.loaded.set_exception(StartFailed("no such module"))
    with pytest.raises(StartFailed, match="no such module"):
        await task

    assert registry.get("m") is before
    assert not before.pool.closed
    assert failed.pool.closed
    assert failed.archive.removed


async def test_changes_of_what_is_being_replaced(registry, builder):
    """They would be lost or lose the other: until it is over each is refused, and then it counts."""
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-1.0.mar")
    again = Registration(url="m-1.0.mar", initial_workers=1)
    for change in (
        registry.unregister("m", None),
        registry.scale("m", "1.0", 2, 2),
        registry.change("m", None, Change.of(batch_size=4)),
        replace_archive(registry, "m", None, again),
        load_anew(registry, before, again),
    ):
        with pytest.raises(Conflict, match=r"m version 1\.0 is being replaced by m-1\.0\.mar"):
            await change
    replacement(builder).pool.loaded.set_result(None)
    await task
    await registry.unregister("m", None)

    assert registry.names() == []
    assert len(builder.built) == 2


async def test_what_a_replacement_takes_over(registry, builder):
    builder.options = {"batch_size": 4, "sources": {"batch_size": "register parameter"}}
    before = await register(registry, "m-1.0.mar", 2, handler="h.py:serve")
    task = await replace_archive(registry, "m", None, Registration(url="http://u:p@h/m-3.0.mar"))
    coming = before.replacement
    assert (coming.state, coming.version, coming.url) == ("LOADING", "3.0", "http://***@h/m-3.0.mar")
    replacement(builder).pool.loaded.set_result(None)
    after = await task

    assert (after.registration.handler, after.registration.batch_size) == ("h.py:serve", 4)
    assert (after.pool.min_workers, after.replacement) == (2, None)


async def test_a_replacement_that_cannot_be(registry, builder, monkeypatch):
    before = await register(registry, "m-1.0.mar", 1)
    with pytest.raises(ModelNotFound):
        await replace_archive(registry, "m", None, Registration(url="absent"))
    assert before.replacement.failure == "Model not found at: absent"

    def no_room(*_):
        with pytest.raises(RuntimeError):
            # It reads /proc, so not on the event loop.
            asyncio.get_running_loop()
        raise OutOfMemory("no room")

    has_room = Mock(side_effect=no_room)
    monkeypatch.setattr(replacing_module, "check_room", has_room)
    with pytest.raises(OutOfMemory):
        await replace_archive(registry, "m", None, Registration(url="m-2.0.mar"))
    assert (before.replacement.state, before.replacement.failure) == ("FAILED", "no room")
    has_room.side_effect = None
    task = await replace_archive(registry, "m", None, Registration(url="m-2.0.mar"))
    replacement(builder).pool.loaded.set_exception(StartFailed("no such module"))
    with pytest.raises(StartFailed):
        await task
    assert before.replacement.failure.endswith("no such module")
    await registry.scale("m", None, 3, 3)

    assert (registry.get("m"), before.pool.min_workers) == (before, 3)
    assert (await register(registry, "m-2.0.mar")).version == "2.0"
    assert [archive.removed for archive in builder.archives] == [False, True, True, False]


@pytest.mark.parametrize("fails", [False, True])
async def test_replacement_on_demand_waits_for_memory(registry, builder, monkeypatch, fails):
    """As a request does, before any worker of it starts; without a place the old version stays."""
    before = await register(registry, "m-1.0.mar", 2)
    place = asyncio.get_running_loop().create_future()
    build = builder.build

    async def build_on_demand(*arguments, **more):
        model = await build(*arguments, **more)
        model.pool.crew.on_demand = SimpleNamespace(load=lambda: place)
        return model

    monkeypatch.setattr(builder, "build", build_on_demand)
    task = await replacing(registry, before, "m-2.0.mar", min_workers=2)
    pool = replacement(builder).pool
    await asyncio.sleep(0)
    assert (pool.workers, pool.min_workers) == ([], 0)
    pool.loaded.set_result(None)
    if fails:
        place.set_exception(OutOfMemory("no room"))
        with pytest.raises(OutOfMemory):
            await task
        assert (registry.get("m"), before.replacement.failure) == (before, "no room")
        return
    place.set_result(None)
    await task

    assert (len(pool.workers), pool.min_workers) == (2, 2)
    assert registry.get("m") is replacement(builder)


@pytest.mark.parametrize("again", [False, True])
async def test_metrics_go_with_the_last_of_a_version(registry, builder, again):
    before = await register(registry, "m-1.0.mar")
    gate = asyncio.Event()

    async def close(grace):
        await gate.wait()

    before.pool.close = close
    task = await replacing(registry, before, "m-2.0.mar")
    replacement(builder).pool.loaded.set_result(None)
    await task
    if again:
        await register(registry, "m-1.0.mar")
    gate.set()
    await until(lambda: not registry.retiring)

    assert builder.forgotten == ([] if again else ["m-1.0"])


async def test_the_end_breaks_replacements_off(registry, builder):
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-2.0.mar")
    await registry.drain(1)
    await registry.close(1)

    assert task.cancelled() or isinstance(task.exception(), asyncio.CancelledError)
    assert replacement(builder).pool.closed
    assert replacement(builder).archive.removed


async def test_what_cannot_be_replaced(registry, builder):
    before = await register(registry, "m-1.0.mar")
    await register(registry, "m-2.0.mar")
    with pytest.raises(Conflict):
        await load_anew(registry, before, Registration(url="m-2.0.mar"))

    assert registry.get("m") is before

    builder.options = {"sequence_batching": True}
    await register(registry, "s-1.0.mar")
    with pytest.raises(BadRequest, match="its sequences live in its workers"):
        await replace_archive(registry, "s", None, Registration(url="s-2.0.mar"))
