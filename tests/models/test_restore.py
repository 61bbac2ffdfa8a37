"""Restoring a snapshot, and telling of changes: a registry over real archives, without workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.models.conftest import entry, restore, saved, write_model

from modelserver.errors import Conflict, InvalidModel, ModelNotFound, ServiceUnavailable
from modelserver.models.snapshot import parse_snapshot, registry_document
from modelserver.models.version import FailedVersion
from modelserver.options.resolve import BatchPolicy, Registration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelserver.models.registry import Registry


def described(registry: Registry) -> Any:
    """The whole state, as it would be written."""
    return registry_document(registry, "x")["models"]


async def test_everything_comes_back(new_registry: Callable[..., Registry], store: Path) -> None:
    """What was registered over the API is the same after a restart, down to handler and policy."""
    write_model(store, "a2", "a", "2.0")
    before = new_registry()
    await before.register(Registration(url="a", batch_size=8, max_batch_delay=50, batch_policy="greedy"))
    await before.register(Registration(url="a2", handler="own.py:handle", response_timeout=7))
    await before.register(Registration(url="b", model_name="c", split_instances="false"))
    await before.set_default("a", "2.0")
    document = registry_document(before, "x")
    after = await restore(new_registry(), parse_snapshot(json.dumps(document)))

    assert described(after) == document["models"]
    model = after.get("a", "1.0")
    assert (model.options.batch_size, model.options.batch_policy) == (8, BatchPolicy.GREEDY)
    assert model.options.sources["batch_size"] == "snapshot"
    assert model.loaded_at_startup
    assert after.get("a").version == "2.0"
    assert after.get("a").pool.spec.load.handler == "own.py:handle"
    assert after.get("c").options.split_instances == "false"


async def test_missing_archive(
    new_registry: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    """A model whose archive is gone is listed as failed with the reason, and the others serve (F55)."""
    registry = await restore(
        new_registry(), saved(gone={"1.0": entry("gone.mar", workers=2)}, b={"1.0": entry("b")})
    )
    model = registry.get("gone")

    assert isinstance(model, FailedVersion)
    assert model.failure == "Model not found at: gone.mar"
    assert "gone 1.0 cannot be restored: Model not found at: gone.mar" in caplog.text
    assert not registry.healthy
    with pytest.raises(InvalidModel, match=r"could not be restored: Model not found at: gone\.mar"):
        await registry.scale("gone", None, 1, 1)
    with pytest.raises(ServiceUnavailable, match="could not be restored"):
        model.pool.submit(None)  # type: ignore[arg-type]
    assert not isinstance(registry.get("b"), FailedVersion)


async def test_broken_archive(new_registry: Callable[..., Registry], store: Path) -> None:
    """The reason of a failed version is what a registration would be answered."""
    (store / "bad.mar").write_bytes(b"no archive")
    registry = await restore(new_registry(), saved(bad={"1.0": entry("bad.mar")}))

    with pytest.raises(InvalidModel) as refused:
        await registry.register(Registration(url="bad.mar"))
    assert getattr(registry.get("bad"), "failure", "") == refused.value.message


async def test_other_version_in_the_archive(
    new_registry: Callable[..., Registry], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An archive that was built anew with another version is served under that, with a warning."""
    write_model(store, "a", "a", "1.1")
    registry = await restore(new_registry(), saved(a={"1.0": entry("a")}))

    assert [model.version for model in registry.versions("a")] == ["1.1"]
    assert "a 1.0 was to be restored, a has version 1.1 now" in caplog.text


async def test_both_versions_from_one_file(new_registry: Callable[..., Registry], store: Path) -> None:
    """Two versions that were in one file, one after the other: the one that is there now is served."""
    write_model(store, "a", "a", "1.1")
    items = saved(a={"1.0": entry("a", default=False), "1.1": entry("a")})
    registry = await restore(new_registry(), items)

    assert [model.version for model in registry.versions("a")] == ["1.1"]
    assert registry.get("a").version == "1.1"


async def test_settings_and_snapshot(
    new_registry: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    """What the settings name is loaded beside what is restored, and nothing twice (design, section 9)."""
    registry = await restore(new_registry("a", "b"), saved(a={"1.0": entry("a", batchSize=4)}))
    await registry.load_initial(lambda _: None, restored=True)

    assert registry.names() == ["a", "b"]
    assert registry.get("a").options.batch_size == 4
    assert "Failed to load" not in caplog.text
    await registry.close(0)


async def test_changes_are_told(new_registry: Callable[..., Registry]) -> None:
    """Each change that was accepted is told before its caller is answered; refused ones are not."""
    registry = new_registry()
    seen: list[Any] = []

    async def note() -> None:
        seen.append({name: list(versions) for name, versions in described(registry).items()})

    registry.on_change = note
    await registry.register(Registration(url="a"))
    await registry.scale("a", None, 0, 0)
    await registry.set_default("a", "1.0")
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    with pytest.raises(ModelNotFound):
        await registry.scale("none", None, 0, 0)
    await registry.unregister("a", None)

    assert seen == [{"a": ["1.0"]}] * 3 + [{}]


async def test_a_folder_outside_of_the_store(
    new_registry: Callable[..., Registry], store: Path, tmp_path: Path
) -> None:
    """What the operator named outside of the store is restored from there; a client's url is not
    loaded, and cannot replace it by something else out there.
    """
    for name in ("mine", "other"):
        write_model(tmp_path, name, name)
    registry = new_registry(f"{tmp_path}/mine")
    assert await registry.load_initial(lambda _: None) == []
    document = registry_document(registry, "x")
    assert document["models"]["mine"]["1.0"]["trusted"] is True

    with pytest.raises(ModelNotFound, match="outside of the model store"):
        await registry.replace(registry.get("mine"), Registration(url=f"{tmp_path}/other"))
    with pytest.raises(ModelNotFound, match="outside of the model store"):
        await registry.register(Registration(url=f"{tmp_path}/other"))

    again = new_registry()
    await again.restore(parse_snapshot(json.dumps(document)), lambda _: None)
    assert again.get("mine").archive.model_dir == tmp_path / "mine"
    await registry.close(0)
    await again.close(0)
