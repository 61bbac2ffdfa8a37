import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.snapshots.document import parse_snapshot, registry_document
from modelserver.models.archives.archive import ModelArchive
from modelserver.models.archives.manifest import Manifest
from modelserver.models.options.resolve import REGISTER, SNAPSHOT, YAML, ModelOptions, Registration
from modelserver.models.version import ModelVersion

# The example in TorchServe's documentation.
TORCHSERVE = """{
  "name": "20240329072056839-snapshot.cfg", "modelCount": 1, "created": 1585466456840,
  "models": {"noop": {"1.11": {"defaultVersion": true, "marName": "noop.mar", "minWorkers": 1,
    "maxWorkers": 2, "batchSize": 4, "maxBatchDelay": 200, "responseTimeout": 60, "parallelLevel": 2}}}
}"""


def version(url="noop.mar", registration=None, **options):
    return ModelVersion(
        "noop",
        options.pop("version", "1.0"),
        url,
        ModelArchive(url, Path("nowhere"), Manifest(), downloaded=options.pop("downloaded", None)),
        ModelOptions(**options),
        "python",
        SimpleNamespace(min_workers=2, max_workers=3),
        None,
        registration=registration or Registration(url=url),
    )


def document(*models):
    registry = SimpleNamespace(
        versions=lambda: list(models), is_default=lambda model: model is models[0], workflows={}
    )
    return registry_document(registry)


def restored(*models):
    return [saved.registration for saved in parse_snapshot(json.dumps(document(*models))).models]


def test_document_has_the_fields_of_torchserve():
    """The state has TorchServe's fields, and counts versions."""
    written = document(version(), version("two.mar", version="2.0", batch_size=8, parallel_level=2))

    assert written["modelCount"] == 2
    assert isinstance(written["created"], int)
    assert written["models"]["noop"]["1.0"] == {
        "defaultVersion": True,
        "marName": "noop.mar",
        "minWorkers": 2,
        "maxWorkers": 3,
        "batchSize": 1,
        "maxBatchDelay": 100,
        "responseTimeout": 120,
        "startupTimeout": 120,
        "runtimeType": "python",
        "batchPolicy": "adaptive",
    }
    second = written["models"]["noop"]["2.0"]
    assert (second["defaultVersion"], second["batchSize"], second["parallelLevel"]) == (False, 8, 2)


def test_the_traffic_is_with_the_default_version():
    state = {"weights": {"1.0": 90, "2.0": 10}, "shadow": {"2.0": {"percent": 5}}}
    versions = version(), version(version="2.0")
    for each in versions:
        each.traffic = SimpleNamespace(state=state)
    saved = parse_snapshot(json.dumps(document(*versions))).models

    assert [each.traffic for each in saved] == [state, None]


def test_snapshot_of_torchserve_is_read():
    """A state that TorchServe wrote is understood; timeouts that it lacks are 120 s."""
    (saved,) = parse_snapshot(TORCHSERVE).models

    assert (saved.name, saved.version, saved.default) == ("noop", "1.11", True)
    assert saved.registration == Registration(
        url="noop.mar",
        model_name="noop",
        batch_size=4,
        max_batch_delay=200,
        min_workers=1,
        max_workers=2,
        response_timeout=60,
        startup_timeout=120,
    )


@pytest.mark.parametrize(("source", "is_written"), [(REGISTER, True), (SNAPSHOT, True), (YAML, False)])
def test_own_options_are_written_if_they_were_registered(source, is_written):
    own = {"autoscale": False, "autoscale_up_pause": 600, "max_worker_memory": 1 << 33}
    model = version()
    model.options = model.options.changed(own, source)
    (back,) = restored(model)

    assert {name: getattr(back, name) for name in own} == (own if is_written else dict.fromkeys(own))


def test_words_of_kserve_stay():
    """A registration in KServe's words has a batcher again, so that V1 answers keep their form."""
    registration = Registration(url="noop.mar", max_batch_size=8, timeout=7)
    (back,) = restored(version(registration=registration, batch_size=8, max_batch_delay=50, batcher=True))

    assert back.has_batcher
    assert (back.max_batch_size, back.max_latency, back.timeout, back.batch_size) == (8, 50, 7, None)


@pytest.mark.parametrize(
    ("url", "restored_from"),
    [
        ("noop.mar", "noop.mar"),
        ("/srv/models/noop.mar", "/srv/models/noop.mar"),
        ("file:///srv/noop.mar", "file:///srv/noop.mar"),
        ("torchvision://resnet18", "torchvision://resnet18"),
        ("https://user:secret@host/noop.mar?token=secret", "noop.mar"),
    ],
)
def test_where_it_is_restored_from(url, restored_from):
    """What the store lacks keeps its URL; a fetched model's URL, which may hold secrets, is not written."""
    (back,) = restored(version(url))
    assert back.url == restored_from
    assert "secret" not in json.dumps(document(version(url)))
    fetched = version(url, downloaded=Path("/store/x.mar"))
    (back,) = parse_snapshot(json.dumps(document(fetched))).models
    assert (fetched.mar_name, back.downloaded, back.registration.url) == ("x.mar", True, "x.mar")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "a JSON object is needed"),
        ('{"workflows": {"w": 1}}', "workflows.w: a JSON object is needed"),
        ('{"workflows": {"w": {}}}', "workflows.w.url: text is needed"),
        (
            '{"workflows": {"w": {"url": "w.war", "responseTimeout": "1"}}}',
            "w.responseTimeout: a whole number",
        ),
        ("[]", "the whole: a JSON object is needed"),
        ('{"models": 1}', "models: a JSON object is needed"),
        ('{"models": {"a": []}}', "models.a: a JSON object is needed"),
        ('{"models": {"a": {"1": {}}}}', "models.a.1.marName: text is needed"),
        ('{"models": {"a": {"1": {"marName": 1}}}}', "models.a.1.marName: text is needed"),
        (
            '{"models": {"a": {"1": {"marName": "a", "batchSize": "8"}}}}',
            "batchSize: a whole number is needed",
        ),
        ('{"models": {"a": {"1": {"marName": "a", "batchSize": true}}}}', "batchSize: a whole number"),
        ('{"models": {"a": {"1": {"marName": "a", "batchSize": -5}}}}', "batch_size=-5"),
        ('{"models": {"a": {"1": {"marName": "a", "defaultVersion": 1}}}}', "true or false is needed"),
        ('{"models": {"a": {"1": {"marName": "a", "traffic": [1]}}}}', "models.a.1.traffic: a JSON object"),
        ('{"models": ' + "[" * 100_000, "a JSON object is needed"),
    ],
)
def test_state_that_is_not_understood(text, problem):
    with pytest.raises(ConfigError, match="Invalid configuration: model_snapshot") as raised:
        parse_snapshot(text)
    assert problem in str(raised.value)
