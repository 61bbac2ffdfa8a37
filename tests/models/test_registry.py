import asyncio
import contextlib
import weakref
from types import SimpleNamespace

import pytest
from tests.cycles import no_cycles
from tests.models.conftest import register

from modelserver.errors import (
    BadRequest,
    Conflict,
    InvalidModel,
    InvalidModelVersion,
    ModelNotFound,
    ModelVersionNotFound,
    StartFailed,
)
from modelserver.models.options.resolve import Registration


async def test_name_is_the_registrations_or_the_manifests(registry, builder):
    """The registration's name wins; without any it is refused, unless one is set for that (reference 2.3)."""
    await register(registry, "m.mar", model_name="other")

    assert registry.names() == ["other"]

    with pytest.raises(InvalidModel, match="Model name is not defined"):
        await register(registry, "-1.0.mar")
    await registry.register(Registration(url="-1.0.mar"), fallback_name="made_of_the_file")

    assert registry.names() == ["other", "made_of_the_file"]
    assert builder.archives[1].removed


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "cannot be part of a path") for name in ("a/b", "a\nb", "\x00", "/", ".", "..")),
        ("m" * 5000, "has 5000 characters, 256 are allowed"),
    ],
)
async def test_name_that_no_path_can_ask_for_is_refused(registry, builder, name, reason):
    """Nothing is left of it, and the message is not as long as the name (F12)."""
    with pytest.raises(InvalidModel, match=reason):
        await register(registry, "m.mar", model_name=name)

    assert builder.archives[0].removed
    assert registry.names() == []


async def test_too_many_workers_are_refused(registry, builder):
    with pytest.raises(BadRequest, match="a model may have 1024"):
        await register(registry, "m.mar", workers=1025)
    assert registry.names() == []
    model = await register(registry, "m.mar")
    with pytest.raises(BadRequest, match="99999999999999999999 workers were requested"):
        await registry.scale("m", None, 99999999999999999999, 99999999999999999999)

    assert model.pool.workers == []


async def test_registered_version_conflicts(registry, builder):
    """The same version twice is refused, and what was unpacked for it removed (F53)."""
    await register(registry, "m.mar")
    with pytest.raises(Conflict, match=r"^Model version 1\.0 is already registered for model m$"):
        await register(registry, "m.mar")

    assert [archive.removed for archive in builder.archives] == [False, True]


async def test_simultaneous_registrations_conflict(registry, builder):
    """If one version is registered twice at the same time, one registration succeeds (F51)."""
    builder.gate.clear()
    both = [asyncio.create_task(register(registry, "m.mar")) for _ in range(2)]
    await asyncio.sleep(0)
    builder.gate.set()
    outcomes = await asyncio.gather(*both, return_exceptions=True)

    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
    assert len(registry.versions()) == 1


async def test_a_refused_build_leaves_nothing(registry, builder):
    """A registration that fails while it is composed leaves nothing, and its name is free again."""
    builder.refusal = BadRequest("no")
    with pytest.raises(BadRequest):
        await register(registry, "m.mar")
    assert builder.archives[0].removed
    builder.refusal = None
    await register(registry, "m.mar")

    assert registry.names() == ["m"]


async def test_failure_is_rolled_back(registry, builder):
    """A synchronous registration whose workers fail is undone before the error is reported (design 9)."""
    await register(registry, "m-1.0.mar")
    model = await register(registry, "m-2.0.mar", workers=1)
    model.pool.loaded.set_exception(StartFailed("No module named x", 507))
    with pytest.raises(StartFailed) as caught:
        await registry.wait_loaded(model)

    assert caught.value.message == (
        "Failed to start workers for model m version: 2.0. Archive 'm-2.0.mar': No module named x"
    )
    assert caught.value.status == 507
    assert builder.dismantled == ["m-2.0"]
    assert [version.version for version in registry.versions("m")] == ["1.0"]


async def test_workers_that_fail_leave_no_reference_cycles(registry):
    """Nor do their failures, which are raised where the workers are known."""
    model = await register(registry, "m.mar")
    with no_cycles():
        worker = SimpleNamespace(first_load=asyncio.get_running_loop().create_future())
        worker.first_load.set_exception(StartFailed("no"))
        with contextlib.suppress(StartFailed):
            await registry.wait_scaled(model, [worker], "1.0")
        del worker
        await asyncio.sleep(0)


async def test_metrics_of_an_unregistered_version_are_forgotten(registry, builder):
    await register(registry, "m-1.0.mar")
    await register(registry, "m-2.0.mar")
    await registry.unregister("m", "2.0")

    assert builder.forgotten == ["m-2.0"]


async def test_changes_of_one_model_take_turns(registry, builder):
    """While a model is being removed a scaling of it waits, and then finds it gone; others go on (F51)."""
    model = await register(registry, "m.mar")
    await register(registry, "other.mar")
    gate = asyncio.Event()

    async def close(grace):
        await gate.wait()

    model.pool.close = close
    removing = asyncio.create_task(registry.unregister("m", None))
    await asyncio.sleep(0)
    scaling = asyncio.create_task(registry.scale("m", None, 1, 1))
    await registry.scale("other", None, 2, 2)
    assert not scaling.done()
    gate.set()
    await removing

    with pytest.raises(ModelNotFound):
        await scaling


async def test_random_changes_end_in_a_consistent_state(registry):
    """Twenty clients that register, scale and remove one model at once leave a state of theirs (F51)."""

    async def client(number):
        for turn in range(10):
            with_errors = (Conflict, ModelNotFound, InvalidModelVersion, ModelVersionNotFound)
            try:
                match (number + turn) % 3:
                    case 0:
                        await register(registry, "m.mar")
                    case 1:
                        await registry.scale("m", None, turn, turn)
                    case 2:
                        await registry.unregister("m", None)
            except with_errors:
                pass

    await asyncio.wait_for(asyncio.gather(*map(client, range(20))), 10)

    assert registry.names() in ([], ["m"])
    assert len(registry.versions()) == len(registry.names())


async def test_registry_closes_pools_and_archives(registry, builder):
    """At the end all pools are drained and closed, and what was unpacked is cleaned up."""
    model = await register(registry, "m.mar")
    await registry.drain(1)
    await registry.close(1)

    assert (model.pool.drained, model.pool.closed, model.archive.closed) == (True, True, True)
    assert registry.names() == []


async def test_a_removed_model_leaves_no_reference_cycles(new_registry, store):
    """Each would take memory until the next collection, which comes after thousands of models."""
    registry = new_registry()

    async def come_and_go():
        pool = weakref.ref((await registry.register(Registration(url="a"))).pool)
        await registry.unregister("a", None)
        return pool

    await come_and_go()  # the helper process is started, modules are imported
    with no_cycles():
        pool = await come_and_go()

    assert pool() is None


async def test_error_lists_what_there_is(registry):
    telling = type(registry)(registry.builder, tells_names=True)
    await register(telling, "m.mar")

    with pytest.raises(ModelNotFound, match=r"^Model not found: none\. There is: m$"):
        telling.versions("none")
    with pytest.raises(ModelVersionNotFound, match=r"for model: m\. There is: 1\.0$"):
        telling.get("m", "9")


async def test_health_is_that_of_the_default_versions(registry):
    """The health is that of the default versions (reference 6.2)."""
    first = await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")
    assert registry.healthy
    second.pool.healthy = False
    assert registry.healthy
    first.pool.healthy = False
    assert not registry.healthy
