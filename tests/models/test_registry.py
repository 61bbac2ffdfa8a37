from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelserver.archives.manifest import Manifest
from modelserver.errors import (
    BadRequest,
    Conflict,
    InvalidModel,
    InvalidModelVersion,
    ModelNotFound,
    ModelVersionNotFound,
    OutOfMemory,
    StartFailed,
)
from modelserver.models.changes import Change
from modelserver.models.registry import Registry
from modelserver.options.resolve import ModelOptions, Registration


class Archive:
    """An archive of a name and a version, written as url ``name-version.mar``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.removed = False
        self.downloaded = None
        self.closed = False
        name, _, version = url.removesuffix(".mar").partition("-")
        self.manifest = Manifest(name, version or "1.0")

    def remove(self) -> None:
        self.removed = True

    def close(self) -> None:
        self.closed = True


class Pool:
    """A pool whose workers load, or fail, when the test says so."""

    def __init__(self) -> None:
        self.workers: list[object] = []
        self.min_workers = self.max_workers = 0
        self.healthy = True
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drained = self.closed = False

    def scale(self, fewest: int, most: int) -> list[object]:
        self.min_workers, self.max_workers = fewest, most
        started = [object() for _ in range(fewest - len(self.workers))]
        self.workers = [*self.workers, *started][: most or fewest]
        return started

    def resize(self, count: int) -> None:
        self.workers = [object() for _ in range(count)]

    async def wait_loaded(self, workers: list[object]) -> None:
        await asyncio.shield(self.loaded)

    def statistics(self) -> Any:
        return SimpleNamespace(ready=len(self.workers) if self.loaded.done() else 0)

    async def drain(self, grace: float) -> bool:
        self.drained = True
        return True

    async def close(self, grace: float) -> None:
        self.closed = True


class Preparation:
    """Prepares archives that need no files."""

    def __init__(self) -> None:
        self.archives: list[Archive] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.startup: list[Registration] = []
        self.dismantled: list[str] = []
        self.retired: list[tuple[str, str]] = []
        self.built: list[Any] = []
        self.options: dict[str, Any] = {}
        self.no_room = False
        self.forgotten: list[str] = []

    def close(self) -> None:
        pass

    async def open(
        self, registration: Registration, on_progress: Any = None, *, beside: Any = None
    ) -> Archive:
        url = registration.url or ""
        if url == "absent":
            raise ModelNotFound("Model not found at: absent")
        archive = Archive(url)
        self.archives.append(archive)
        await self.gate.wait()
        return archive

    async def build(
        self,
        name: str,
        registration: Registration,
        archive: Archive,
        *,
        at_startup: bool,
        on_progress: Any = None,
    ) -> Any:
        if self.refusal is not None:
            raise self.refusal
        workers = registration.min_workers or registration.initial_workers or 0
        model = SimpleNamespace(
            name=name,
            url=archive.url,
            version=archive.manifest.model_version,
            archive=archive,
            pool=Pool(),
            loaded_at_startup=False,
            options=ModelOptions(min_workers=workers, max_workers=workers, **self.options),
            registration=registration,
            replacement=None,
        )
        self.built.append(model)
        return model

    async def dismantle(self, model: Any) -> None:
        self.dismantled.append(f"{model.name}-{model.version}")
        await model.pool.close(0)
        model.archive.remove()

    def check_room(self, before: Any, after: Any) -> None:
        if self.no_room:
            raise OutOfMemory("no room")

    async def settle(self, before: Any, after: Any) -> None:
        pass

    async def abandon(self, model: Any) -> None:
        await model.pool.close(0)
        model.archive.remove()

    def forget(self, model: Any) -> None:
        self.forgotten.append(f"{model.name}-{model.version}")

    async def retire(self, model: Any, successor: Any) -> None:
        self.retired.append((f"{model.name}-{model.version}", f"{successor.name}-{successor.version}"))
        await model.pool.close(0)
        model.archive.close()

    def initial(self) -> list[Registration]:
        return self.startup

    @staticmethod
    def default_name(url: str) -> str:
        return "named_by_default"


@pytest.fixture
async def preparation() -> Preparation:
    return Preparation()


@pytest.fixture
async def registry(preparation: Preparation) -> Registry:
    return Registry(cast("Any", preparation))


async def register(registry: Registry, url: str, workers: int = 0, **parameters: Any) -> Any:
    return await registry.register(Registration(url=url, initial_workers=workers, **parameters))


async def test_versions(registry: Registry) -> None:
    """The first version is the default; others are found by their number."""
    first = await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")

    assert registry.get("m") is registry.get("m", "1.0") is first
    assert registry.get("m", "2.0") is second
    assert registry.versions("m") == [first, second]
    assert list(registry.defaults()) == [first]
    assert registry.names() == ["m"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("none", None), ModelNotFound, "Model not found: none"),
        (("m", "9"), ModelVersionNotFound, "Model version: 9 does not exist for model: m"),
    ],
)
async def test_unknown(registry: Registry, arguments: Any, error: type[Exception], message: str) -> None:
    """What is not registered is told in TorchServe's words."""
    await register(registry, "m.mar")
    with pytest.raises(error) as caught:
        registry.get(*arguments)

    assert str(caught.value) == message
    with pytest.raises(ModelNotFound):
        registry.versions("none")


async def test_given_name(registry: Registry) -> None:
    """A name given at registration beats the manifest's."""
    await register(registry, "m.mar", model_name="other")

    assert registry.names() == ["other"]


async def test_no_name(registry: Registry, preparation: Preparation) -> None:
    """Without any name a registration is refused; at start one is made of the file's (reference 2.3)."""
    with pytest.raises(InvalidModel, match="Model name is not defined"):
        await register(registry, "-1.0.mar")
    await registry.register(Registration(url="-1.0.mar"), at_startup=True)

    assert registry.names() == ["named_by_default"]
    assert preparation.archives[0].removed


@pytest.mark.parametrize("name", ["a/b", "a\nb", "\x00", "/", ".", ".."])
async def test_name_that_no_path_can_ask_for(registry: Registry, preparation: Preparation, name: str) -> None:
    """A name that could never be asked for is refused, and nothing is left of it (F12)."""
    with pytest.raises(InvalidModel, match="cannot be part of a path"):
        await register(registry, "m.mar", model_name=name)

    assert preparation.archives[0].removed
    assert registry.names() == []


async def test_name_beyond_measure(registry: Registry) -> None:
    """A name that is longer than any name is refused, in a message that is not as long."""
    with pytest.raises(InvalidModel, match="has 5000 characters, 256 are allowed"):
        await register(registry, "m.mar", model_name="m" * 5000)


async def test_too_many_workers(registry: Registry, preparation: Preparation) -> None:
    """More workers than anybody could mean are refused, at registration and when a model is scaled."""
    with pytest.raises(BadRequest, match="a model may have 1024"):
        await register(registry, "m.mar", workers=1025)
    assert registry.names() == []
    model = await register(registry, "m.mar")
    with pytest.raises(BadRequest, match="99999999999999999999 workers were asked for"):
        await registry.scale("m", None, 99999999999999999999, 99999999999999999999)

    assert model.pool.workers == []


async def test_conflict(registry: Registry, preparation: Preparation) -> None:
    """The same version twice is refused, and what was unpacked for it removed (F53)."""
    await register(registry, "m.mar")
    with pytest.raises(Conflict, match=r"^Model version 1\.0 is already registered for model m$"):
        await register(registry, "m.mar")

    assert [archive.removed for archive in preparation.archives] == [False, True]


async def test_simultaneous_conflict(registry: Registry, preparation: Preparation) -> None:
    """Of two simultaneous registrations of one version one wins (F51)."""
    preparation.gate.clear()
    both = [asyncio.create_task(register(registry, "m.mar")) for _ in range(2)]
    await asyncio.sleep(0)
    preparation.gate.set()
    outcomes = await asyncio.gather(*both, return_exceptions=True)

    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
    assert len(registry.versions()) == 1


async def test_refused_build(registry: Registry, preparation: Preparation) -> None:
    """A registration that fails while it is composed leaves nothing, and its name is free again."""
    preparation.refusal = BadRequest("no")
    with pytest.raises(BadRequest):
        await register(registry, "m.mar")
    assert preparation.archives[0].removed
    preparation.refusal = None
    await register(registry, "m.mar")

    assert registry.names() == ["m"]


async def test_wait_loaded(registry: Registry) -> None:
    """A registration is complete when its workers are loaded."""
    model = await register(registry, "m.mar", workers=2)
    waiting = asyncio.create_task(registry.wait_loaded(model))
    await asyncio.sleep(0)
    assert not waiting.done()
    model.pool.loaded.set_result(None)

    assert (await waiting).complete


async def test_failure_is_rolled_back(registry: Registry, preparation: Preparation) -> None:
    """A synchronous registration whose workers fail is taken back before it is told (design, section 9)."""
    await register(registry, "m-1.0.mar")
    model = await register(registry, "m-2.0.mar", workers=1)
    model.pool.loaded.set_exception(StartFailed("No module named x", 507))
    with pytest.raises(StartFailed) as caught:
        await registry.wait_loaded(model)

    assert caught.value.message == (
        "Failed to start workers for model m version: 2.0. Archive 'm-2.0.mar': No module named x"
    )
    assert caught.value.status == 507
    assert preparation.dismantled == ["m-2.0"]
    assert [version.version for version in registry.versions("m")] == ["1.0"]


async def test_failure_of_a_scaling(registry: Registry, preparation: Preparation) -> None:
    """A scaling whose workers fail leaves the model registered; a version that was not named is null."""
    model = await register(registry, "m.mar")
    started = await registry.scale("m", None, 1, 1)
    model.pool.loaded.set_exception(StartFailed("why"))
    refusal = r"^Failed to start workers for model m version: null\. Archive 'm\.mar': why$"
    with pytest.raises(StartFailed, match=refusal):
        await registry.wait_scaled(model, started, None)

    assert preparation.dismantled == []
    assert registry.get("m") is model


async def test_set_default(registry: Registry) -> None:
    """The default moves to a version that exists."""
    await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")
    await registry.set_default("m", "2.0")

    assert registry.get("m") is second
    with pytest.raises(ModelVersionNotFound, match=r"^Model version 9 does not exist for model m$"):
        await registry.set_default("m", "9")
    with pytest.raises(ModelNotFound):
        await registry.set_default("none", "1.0")


async def test_unregister(registry: Registry, preparation: Preparation) -> None:
    """Other versions go before the default one; with the last the name is gone."""
    await register(registry, "m-1.0.mar")
    await register(registry, "m-2.0.mar")
    with pytest.raises(InvalidModelVersion, match=r"^Cannot remove default version for model m$"):
        await registry.unregister("m", None)
    await registry.unregister("m", "2.0")
    await registry.unregister("m", "1.0")

    assert preparation.dismantled == ["m-2.0", "m-1.0"]
    assert registry.names() == []
    with pytest.raises(ModelNotFound):
        await registry.unregister("m", None)


async def test_changes_of_one_model_take_turns(registry: Registry, preparation: Preparation) -> None:
    """While a model is being removed a scaling of it waits, and then finds it gone; others go on (F51)."""
    model = await register(registry, "m.mar")
    await register(registry, "other.mar")
    gate = asyncio.Event()

    async def close(grace: float) -> None:
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


async def test_random_changes(registry: Registry) -> None:
    """Twenty clients that register, scale and remove one model at once end in a state that
    is one of theirs (F51).
    """

    async def client(number: int) -> None:
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


async def test_health(registry: Registry) -> None:
    """The health is that of the default versions (reference 6.2)."""
    first = await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")
    assert registry.healthy
    second.pool.healthy = False
    assert registry.healthy
    first.pool.healthy = False
    assert not registry.healthy


async def test_load_initial(
    registry: Registry, preparation: Preparation, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be loaded at start is logged and left out; progress is told (F55)."""
    preparation.startup = [Registration(url="absent"), Registration(url="m.mar")]
    told: list[str] = []
    left_out = await registry.load_initial(told.append)

    assert registry.get("m").loaded_at_startup
    assert left_out == ["Failed to load model: absent: Model not found at: absent"]
    assert told == ["Loading absent", "Loading m.mar"]
    assert "Failed to load model: absent: Model not found at: absent" in caplog.text


async def test_end(registry: Registry, preparation: Preparation) -> None:
    """At the end all pools are drained and closed, and what was unpacked is cleaned up."""
    model = await register(registry, "m.mar")
    await registry.drain(1)
    await registry.close(1)

    assert (model.pool.drained, model.pool.closed, model.archive.closed) == (True, True, True)
    assert registry.names() == []


# Loading anew


async def replacing(registry: Registry, before: Any, url: str) -> asyncio.Task[Any]:
    """A replacement whose workers have not loaded yet."""
    task = asyncio.create_task(
        cast("Any", registry.replace(before, Registration(url=url, model_name="m", initial_workers=1)))
    )
    await asyncio.sleep(0.02)
    return task


def replacement(preparation: Preparation) -> Any:
    """The version that was built last."""
    return preparation.built[-1]


@pytest.mark.parametrize("version", ["1.0", "3.0"])
async def test_a_model_is_replaced(registry: Registry, preparation: Preparation, version: str) -> None:
    """The old one serves until the new one is loaded; then that has its place, as the default too (F52)."""
    before = await register(registry, "m-1.0.mar")
    other = await register(registry, "m-2.0.mar")
    task = await replacing(registry, before, f"m-{version}.mar")
    assert registry.get("m") is before
    assert not before.pool.closed
    replacement(preparation).pool.loaded.set_result(None)
    after = await task
    await asyncio.sleep(0)

    assert registry.get("m") is registry.get("m", version) is after
    assert registry.versions("m") == [after, other]
    assert preparation.retired == [("m-1.0", f"m-{version}")]
    assert before.pool.closed
    assert not before.archive.removed


async def test_a_failed_replacement_changes_nothing(registry: Registry, preparation: Preparation) -> None:
    """What was there goes on serving; what was built for the other is gone (F52)."""
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-1.0.mar")
    failed = replacement(preparation)
    failed.pool.loaded.set_exception(StartFailed("no such module"))
    with pytest.raises(StartFailed, match="no such module"):
        await task

    assert registry.get("m") is before
    assert not before.pool.closed
    assert failed.pool.closed
    assert failed.archive.removed


async def test_changes_of_what_is_being_replaced(registry: Registry, preparation: Preparation) -> None:
    """They would be lost or lose the other: until it is over each is refused, and then it counts."""
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-1.0.mar")
    again = Registration(url="m-1.0.mar", initial_workers=1)
    for change in (
        registry.unregister("m", None),
        registry.scale("m", "1.0", 2, 2),
        registry.change("m", None, Change.of(batch_size=4)),
        registry.replace_archive("m", None, again),
        registry.replace(before, again),
    ):
        with pytest.raises(Conflict, match=r"m version 1\.0 is being replaced by m-1\.0\.mar"):
            await change
    replacement(preparation).pool.loaded.set_result(None)
    await task
    await registry.unregister("m", None)

    assert registry.names() == []
    assert len(preparation.built) == 2


async def test_what_a_replacement_takes_over(registry: Registry, preparation: Preparation) -> None:
    """The numbers of workers and what was asked for stay; the state is told until the new one serves."""
    preparation.options = {"batch_size": 4, "sources": {"batch_size": "register parameter"}}
    before = await register(registry, "m-1.0.mar", 2, handler="h.py:serve")
    task = await registry.replace_archive("m", None, Registration(url="http://u:p@h/m-3.0.mar"))
    told = before.replacement
    assert (told.state, told.version, told.url) == ("LOADING", "3.0", "http://***@h/m-3.0.mar")
    replacement(preparation).pool.loaded.set_result(None)
    after = await task

    assert (after.registration.handler, after.registration.batch_size) == ("h.py:serve", 4)
    assert (after.pool.min_workers, after.replacement) == (2, None)


async def test_a_replacement_that_cannot_be(registry: Registry, preparation: Preparation) -> None:
    """No archive, no room, no worker: the version says why and can be changed as before."""
    before = await register(registry, "m-1.0.mar", 1)
    with pytest.raises(ModelNotFound):
        await registry.replace_archive("m", None, Registration(url="absent"))
    assert before.replacement.failure == "Model not found at: absent"
    preparation.no_room = True
    with pytest.raises(OutOfMemory):
        await registry.replace_archive("m", None, Registration(url="m-2.0.mar"))
    assert (before.replacement.state, before.replacement.failure) == ("FAILED", "no room")
    preparation.no_room = False
    task = await registry.replace_archive("m", None, Registration(url="m-2.0.mar"))
    replacement(preparation).pool.loaded.set_exception(StartFailed("no such module"))
    with pytest.raises(StartFailed):
        await task
    assert before.replacement.failure.endswith("no such module")
    await registry.scale("m", None, 3, 3)

    assert (registry.get("m"), before.pool.min_workers) == (before, 3)
    assert (await register(registry, "m-2.0.mar")).version == "2.0"
    assert [archive.removed for archive in preparation.archives] == [False, True, True, False]


@pytest.mark.parametrize("again", [False, True])
async def test_metrics_go_with_the_last_of_a_version(
    registry: Registry, preparation: Preparation, again: bool
) -> None:
    """While the workers of one end another may be registered under its name and version, and keeps them."""
    before = await register(registry, "m-1.0.mar")
    gate = asyncio.Event()

    async def close(grace: float) -> None:
        await gate.wait()

    before.pool.close = close
    task = await replacing(registry, before, "m-2.0.mar")
    replacement(preparation).pool.loaded.set_result(None)
    await task
    if again:
        await register(registry, "m-1.0.mar")
    gate.set()
    await asyncio.sleep(0.01)

    assert preparation.forgotten == ([] if again else ["m-1.0"])


async def test_sequences_are_not_replaced(registry: Registry, preparation: Preparation) -> None:
    """What their workers remember no other worker knows."""
    preparation.options = {"sequence_batching": True}
    await register(registry, "m-1.0.mar")
    with pytest.raises(BadRequest, match="its sequences live in its workers"):
        await registry.replace_archive("m", None, Registration(url="m-2.0.mar"))


async def test_the_end_breaks_replacements_off(registry: Registry, preparation: Preparation) -> None:
    """A server that ends does not wait for what was loading beside a version."""
    before = await register(registry, "m-1.0.mar")
    task = await replacing(registry, before, "m-2.0.mar")
    await registry.drain(1)
    await registry.close(1)

    assert task.cancelled() or isinstance(task.exception(), asyncio.CancelledError)
    assert replacement(preparation).pool.closed
    assert replacement(preparation).archive.removed


async def test_a_replacement_by_another_version(registry: Registry) -> None:
    """One that is registered beside it cannot take its place."""
    before = await register(registry, "m-1.0.mar")
    await register(registry, "m-2.0.mar")
    with pytest.raises(Conflict):
        await registry.replace(before, Registration(url="m-2.0.mar"))

    assert registry.get("m") is before
