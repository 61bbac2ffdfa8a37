"""Autoscaling as it is asked for: where from, what wins, what is kept, and what it makes of a pool."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.scaling import ScalingRule
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import BadRequest, InvalidModel
from modelserver.models.archives.archive import ModelArchive
from modelserver.models.archives.manifest import Manifest
from modelserver.models.changes import Change
from modelserver.models.options.resolve import (
    CONFIG_FILE,
    DEFAULT,
    REGISTER,
    SNAPSHOT,
    YAML,
    ModelOptions,
    Registration,
    resolve_options,
)
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.preparation import Preparation
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import Settings
from modelserver.models.snapshot import parse_snapshot, registry_document


def resolve(yaml: str = "", settings: dict[str, Any] | None = None, **registration: Any) -> ModelOptions:
    config = parse_model_config(yaml)[0] if yaml else None
    return resolve_options(
        "m",
        "1.0",
        Registration(**registration),
        config,
        Settings(**(settings or {})),
        at_startup=False,
        device_count=0,
        cpu_count=2,
    )


def test_off_by_default(tmp_path: Path) -> None:
    """Nobody gets it unasked, with neither set of defaults."""
    assert resolve().autoscale is False
    theirs = load_settings({}, {"TS_COMPAT_DEFAULTS": "torchserve"}, tmp_path).settings
    assert theirs.as_torchserve
    assert theirs.autoscale is False


@pytest.mark.parametrize(
    ("yaml", "settings", "registration", "expected"),
    [
        ("autoscale: true", {}, {}, (True, YAML)),
        ("autoscale: false", {"autoscale": True}, {}, (False, YAML)),
        ("autoscale: false", {}, {"autoscale": True}, (True, REGISTER)),
        ("autoscale: true", {}, {"autoscale": False}, (False, REGISTER)),
        ("", {"autoscale": True}, {}, (True, CONFIG_FILE)),
        ("", {}, {}, (False, DEFAULT)),
    ],
)
def test_who_wins(
    yaml: str, settings: dict[str, Any], registration: dict[str, Any], expected: tuple[bool, str]
) -> None:
    """The registration, then the archive, then the server."""
    options = resolve(yaml, settings, **registration)

    assert (options.autoscale, options.sources["autoscale"]) == expected


def test_times() -> None:
    """Each time has its own source."""
    options = resolve(
        "autoscaleUpPause: 300", {"autoscale_down_pause": 9000}, autoscale=True, autoscale_target_wait=7
    )

    found = [options.autoscale_target_wait, options.autoscale_up_pause, options.autoscale_down_pause]
    assert found == [7, 300, 9000]
    names = ("autoscale_target_wait", "autoscale_up_pause", "autoscale_down_pause")
    assert [options.sources[name] for name in names] == [REGISTER, YAML, CONFIG_FILE]


@pytest.mark.parametrize(
    "wrong", [{"autoscale_target_wait": 0}, {"autoscale_up_pause": 99}, {"autoscale_down_pause": -1}]
)
def test_out_of_range(wrong: dict[str, int]) -> None:
    """Times that cannot be meant are refused, in the registration and live."""
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        Registration(**wrong)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        Change.of(**wrong)


@pytest.mark.parametrize("wrong", ["autoscale: often", "autoscaleUpPause: 5", "autoscaleTargetWait: soon"])
def test_wrong_in_the_archive(wrong: str) -> None:
    """So are those of model-config.yaml."""
    with pytest.raises(InvalidModel, match=wrong.partition(":")[0]):
        parse_model_config(wrong)


def test_sequences() -> None:
    """Models whose workers hold sequences are not scaled by load, with a warning where it was asked for."""
    yaml = "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\n"
    asked = resolve(yaml + "autoscale: true")
    assert asked.autoscale is False
    assert "autoscale has no effect on a model with sequenceBatching" in asked.warnings
    everywhere = resolve(yaml, {"autoscale": True})
    assert (everywhere.autoscale, everywhere.warnings) == (False, ())

    with pytest.raises(BadRequest, match="autoscale=true is not possible"):
        Change.of(autoscale=True).applied_to(asked)


def test_change() -> None:
    """It is changed live like other settings, off as well as on."""
    on = Change.of(autoscale=True, autoscale_up_pause=500)
    assert str(on) == "autoscale=true, autoscale_up_pause=500"
    options = on.applied_to(ModelOptions())
    assert (options.autoscale, options.autoscale_up_pause, options.autoscale_down_pause) == (
        True,
        500,
        60_000,
    )

    off = Change.of(autoscale=False)
    assert off
    assert str(off) == "autoscale=false"
    assert off.applied_to(options).autoscale is False


@pytest.mark.parametrize("source", [REGISTER, SNAPSHOT])
@pytest.mark.parametrize("on", [True, False])
def test_snapshot_keeps_it(source: str, on: bool) -> None:
    """Bounds and what was asked for come back from a snapshot."""
    names = ("autoscale", "autoscale_target_wait", "autoscale_up_pause", "autoscale_down_pause")
    options = ModelOptions(
        autoscale=on,
        autoscale_target_wait=5,
        autoscale_up_pause=600,
        autoscale_down_pause=7000,
        sources=dict.fromkeys(names, source),
    )
    (saved,) = parse_snapshot(json.dumps(document(options))).models
    found = saved.registration

    assert [getattr(found, name) for name in names] == [on, 5, 600, 7000]
    assert (found.min_workers, found.max_workers) == (1, 4)


def test_snapshot_leaves_the_archive_its_say() -> None:
    """What came from elsewhere is not written down: it may change there."""
    (saved,) = parse_snapshot(
        json.dumps(document(ModelOptions(autoscale=True, sources={"autoscale": YAML})))
    ).models

    assert saved.registration.autoscale is None


def document(options: ModelOptions) -> dict[str, Any]:
    model = SimpleNamespace(
        name="m",
        version="1.0",
        url="m.mar",
        archive=ModelArchive("m.mar", Path("nowhere"), Manifest()),
        options=options,
        registration=Registration(url="m.mar"),
        runtime="python",
        pool=SimpleNamespace(min_workers=1, max_workers=4),
        traffic=None,
    )
    registry = SimpleNamespace(versions=lambda: [model], is_default=lambda _: True, workflows={})
    return registry_document(cast("Any", registry))


async def test_pool(tmp_path: Path) -> None:
    """A version that asks for it has a pool that is scaled by its rule; live changes reach it."""
    folder = tmp_path / "m" / "MAR-INF"
    folder.mkdir(parents=True)
    manifest = {"model": {"modelName": "m", "modelVersion": "1.0", "handler": "own.py"}}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "m" / "own.py").write_text("def handle(data, context):\n    return data\n")
    work = tmp_path / "work"
    work.mkdir()
    preparation = Preparation(
        Settings(model_store=tmp_path),
        dict.fromkeys(KEYS, DEFAULT),
        work,
        ServerMetrics(),
        DeviceRing(0),
    )
    archive = await preparation.open(Registration(url="m"))
    model = await preparation.build(
        "m", Registration(url="m", autoscale=True, autoscale_target_wait=50), archive, at_startup=False
    )
    assert model.pool.autoscaling is not None
    assert model.pool.autoscaling.rule == ScalingRule(0.05, 2.0, 60.0)
    preparation.reconfigure(model, Change.of(autoscale_down_pause=500))
    assert model.pool.autoscaling.rule == ScalingRule(0.05, 2.0, 0.5)
    preparation.reconfigure(model, Change.of(autoscale=False))

    assert model.pool.autoscaling is None
