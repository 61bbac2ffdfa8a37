"""Autoscaling: off unless somebody wants it, within bounds, and what it makes of a pool."""

import pytest
from tests.models.conftest import version_builder, write_model
from tests.models.options.conftest import resolve

from modelserver.errors import BadRequest
from modelserver.ext.autoscaling.extension import LateAutoscaler
from modelserver.ext.autoscaling.scaling import ScalingRule
from modelserver.models.changes import Change
from modelserver.models.options.resolve import ModelOptions, Registration
from modelserver.models.settings.load import load_settings


def test_autoscaling_is_off_by_default(tmp_path):
    assert resolve().autoscale is False
    other = load_settings({}, {"TS_COMPAT_DEFAULTS": "torchserve"}, tmp_path).settings
    assert other.as_torchserve
    assert other.autoscale is False


def test_models_with_sequences_are_not_scaled():
    yaml = "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\n"
    by_file = resolve(yaml=yaml + "autoscale: true")
    assert by_file.autoscale is False
    assert "autoscale has no effect on a model with sequenceBatching" in by_file.warnings
    everywhere = resolve(yaml=yaml, autoscale=True)
    assert (everywhere.autoscale, everywhere.warnings) == (False, ())

    with pytest.raises(BadRequest, match="autoscale=true is not possible"):
        Change.of(autoscale=True).applied_to(by_file)


def test_autoscaling_is_changed_live():
    """It is changed live like other settings, off as well as on."""
    on = Change.of(autoscale=True, autoscale_up_pause=500)
    assert str(on) == "autoscale=true, autoscale_up_pause=500"
    made = on.applied_to(ModelOptions())
    assert (made.autoscale, made.autoscale_up_pause, made.autoscale_down_pause) == (True, 500, 60_000)

    off = Change.of(autoscale=False)
    assert off
    assert str(off) == "autoscale=false"
    assert off.applied_to(made).autoscale is False


async def test_pool_is_scaled_by_the_rule(tmp_path):
    scaler = LateAutoscaler()
    write_model(tmp_path, "m", "m")
    builder = version_builder(tmp_path / "work", model_store=tmp_path)
    builder.follows.append((scaler.follow, scaler.follow))
    archive = await builder.open(Registration(url="m"))
    model = await builder.build(
        "m", Registration(url="m", autoscale=True, autoscale_target_wait=50), archive, at_startup=False
    )
    assert model.pool.crew.autoscaling.rule == ScalingRule(0.05, 2.0, 60.0)
    builder.reconfigure(model, Change.of(autoscale_down_pause=500))
    assert model.pool.crew.autoscaling.rule == ScalingRule(0.05, 2.0, 0.5)
    builder.reconfigure(model, Change.of(autoscale=False))

    assert model.pool.crew.autoscaling is None
    builder.close()
