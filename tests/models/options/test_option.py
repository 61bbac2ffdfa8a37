import json
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from docs.model_config import MODELS, ranks_above, ranks_below
from tests.documents import describe_listener

from modelserver.errors import BadRequest, ConfigError
from modelserver.ext.snapshots.document import parse_snapshot
from modelserver.models.changes import Change
from modelserver.models.options import resolve
from modelserver.models.options.option import options_of, parameter, parameters_of
from modelserver.models.options.table import CHANGEABLE, WORKERS
from modelserver.models.options.values import boolean, whole
from modelserver.models.replacing import taken_over
from modelserver.surface.api.describe import described
from modelserver.surface.api.management import read_change, read_registration
from modelserver.surface.api.parameters import Parameters

_OWN = {name: row for name, row in resolve.REQUESTABLE.items() if row.own}


@dataclass(frozen=True)
class Sample:
    batch_size: int | None = WORKERS("batchSize", whole(1), "", requested="Size.", kserve="max_batch_size")
    idle: int | None = WORKERS("idleTime", whole(0, 9), "Idle.", own=True, setting="idle", below=("more",))
    wait: bool | None = parameter(boolean(), "Wait.", {"default": True})
    other: bool = False


def test_rows_stand_at_their_fields():
    assert Sample() == Sample(None, None, None, other=False)
    assert {name: (row.name, row.key) for name, row in options_of(Sample).items()} == {
        "batch_size": ("batch_size", "batchSize"),
        "idle": ("idle", "idleTime"),
    }
    assert [(name, row.description) for name, row in parameters_of(Sample).items()] == [("wait", "Wait.")]

    size, idle = options_of(Sample).values()

    assert ranks_above(size) == ("`batch_size`", "`max_batch_size`", "`batcher.maxBatchSize`")
    assert ranks_below(size) == (MODELS,)
    assert ranks_above(idle) == ()
    assert ranks_below(idle) == ("`more`", "`idle` of config.properties")
    assert (size.is_strict, idle.is_strict) == (False, True)


def value_of(name):
    values = resolve.PARAMETERS[name].values
    if values.type == "boolean":
        return True
    if values.allowed.startswith("a path"):
        return "/api"
    return values.choices[-1] if values.choices else 250


@pytest.mark.parametrize("name", resolve.REQUESTABLE)
def test_registrations_read_all_options(name):
    registration = read_registration(Parameters({"url": "a.mar", name: str(value_of(name)).lower()}))
    assert registration.value_of(name) == value_of(name)

    document = describe_listener("management", "1")
    operation = document["paths"]["/models"]["post"]
    assert name in [described["name"] for described in operation["parameters"]]
    assert name in document["components"]["schemas"]["RegisterRequest"]["properties"]


@pytest.mark.parametrize("name", CHANGEABLE)
def test_changes_read_all_options_that_may_change(name):
    options = read_change(Parameters({name: str(value_of(name)).lower()})).applied_to(resolve.ModelOptions())
    assert getattr(options, name) == value_of(name)
    assert options.sources == {name: resolve.REGISTER}

    operation = describe_listener("management", "1")["paths"]["/models/{model_name}"]["put"]
    assert name in [described["name"] for described in operation["parameters"]]


@pytest.mark.parametrize(
    "name", [name for name in resolve.REQUESTABLE if name not in {"min_workers", "max_workers"}]
)
def test_replacements_take_over_requested_values(name):
    value = value_of(name)
    before = SimpleNamespace(
        name="m",
        options=resolve.ModelOptions().changed({name: value}, resolve.REGISTER),
        registration=resolve.Registration(),
        pool=SimpleNamespace(min_workers=1, max_workers=1),
    )

    assert getattr(taken_over(before, resolve.Registration()), name) == value


@pytest.mark.parametrize("name", _OWN)
def test_snapshots_give_back_own_options(name):
    for value, is_read in ((value_of(name), True), ([], False)):
        text = json.dumps({"models": {"m": {"1.0": {"marName": "m.mar", _OWN[name].key: value}}}})
        if is_read:
            (saved,) = parse_snapshot(text).models
            assert getattr(saved.registration, name) == value
        else:
            with pytest.raises(ConfigError, match=_OWN[name].key):
                parse_snapshot(text)


def test_description_has_bounds_and_times_without_those_that_limit_nothing():
    """Bounds beside all, times in their block; what is without limit is left out."""
    options = resolve.ModelOptions(max_worker_requests=7, autoscale_up_pause=300)
    assert described(options) == {"maxWorkerMemory": None, "maxWorkerRequests": 7, "workerThreads": None}
    assert described(options, "autoscaling") == {"targetWait": 100, "upPause": 300, "downPause": 60_000}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_worker_memory", value) for value in (-1, 1 << 60)),
        *(("max_worker_requests", value) for value in (-1, 1 << 60)),
        ("autoscale_target_wait", 0),
        ("autoscale_up_pause", 99),
        ("autoscale_down_pause", -1),
        ("batch_size", -2),
        ("max_batch_delay", -5),
        ("response_timeout", 0),
        ("batch_policy", "often"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    for refused in (resolve.Registration, Change.of):
        with pytest.raises(BadRequest, match=name):
            refused(**{name: value})


def test_an_option_is_one_row():
    row = (
        "    new_limit: int | None = WORKERS(\n"
        "        'newLimit', whole(1), 'New.', own=True, requested='New.', changed='New.',\n"
        "        otherwise=5, described='newLimit',\n"
        "    )\n"
    )
    program = f"""
import importlib.util, json, sys
from pathlib import Path

name = "modelserver.models.options.table"
spec = importlib.util.find_spec(name)
table = sys.modules[name] = importlib.util.module_from_spec(spec)
above = "    startup_timeout: int | None"
before, _, after = Path(spec.origin).read_text().partition(above)
exec(compile(before + {row!r} + above + after, spec.origin, "exec"), table.__dict__)

from docs.model_config import reference
from tests.models.options.conftest import resolve
from modelserver.models.changes import Change
from modelserver.models.options.resolve import Registration
from modelserver.models.builder import _limits
from modelserver.ext.snapshots.document import parse_snapshot
from modelserver.surface.api.describe import described

file = resolve(Registration(), "newLimit: 7")
changed = Change.of(new_limit=9).applied_to(file)
state = {{"models": {{"m": {{"1.0": {{"marName": "m.mar", "newLimit": 8}}}}}}}}
saved = parse_snapshot(json.dumps(state)).models[0].registration
print(json.dumps([
    *(_limits(each).options["new_limit"] for each in (resolve(Registration()), file)),
    *(_limits(each).options["new_limit"] for each in (resolve(saved), changed)),
    file.sources["new_limit"], described(changed)["newLimit"], "newLimit" in reference(),
]))
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert json.loads(run.stdout) == [5, 7, 8, 9, resolve.YAML, 9, True]
