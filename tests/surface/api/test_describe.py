import json
import math
from types import SimpleNamespace

import jsonschema
import pytest
from tests.documents import exactly, schema_of
from tests.surface.api.doubles import model, worker

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.spec import Node, WorkerState
from modelserver.engine.pools.worker import Failures
from modelserver.engine.telemetry.gpus import gpus as readings
from modelserver.engine.wire.messages import Loaded
from modelserver.errors import HandlerError, InternalError
from modelserver.ext.autoscaling.scaling import Decision, PoolScaling, Sample, ScaleEvent, ScalingRule
from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.traffic import ModelTraffic
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.version import ModelVersion, Replacement
from modelserver.surface.api.describe import (
    describe,
    describe_autoscaling,
    describe_failure,
    describe_worker,
)
from modelserver.surface.http.answers import pretty

# A moment, as it is measured and as it is described.
MOMENT = 1727877233.034
DESCRIBED_MOMENT = "2024-10-02T13:53:53.034Z"


NODE = SimpleNamespace(node=Node("n1", "h", resident=5 << 20, gpu="gpuId::0"))
MACHINE = {"memoryUsage": 5 << 20, "node": {"name": "n1", "host": "h"}}
EMPTY = dict.fromkeys(("failure", "failedLoads", "nextTry", "lastEnd", "largestBatch", "node"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"id": "9000", "status": "READY", "startTime": DESCRIBED_MOMENT, **EMPTY}),
        ({}, {"gpu": False, "gpuUsage": "N/A"}),
        ({"gpu": 0}, {"gpu": True, "gpuUsage": "failed to obtained gpu usage"}),
        ({"is_on_cpu": True}, {"gpu": False, "gpuUsage": "N/A"}),
        ({"process": NODE}, {"gpu": True, "gpuUsage": "gpuId::0", **MACHINE}),
        ({"process": NODE, "is_on_cpu": True}, {"gpu": False, "gpuUsage": "N/A"}),
        (
            {"pid": -1, "state": WorkerState.FAILED, "failure": "No module named x"},
            {"pid": -1, "memoryUsage": 0, "status": "FAILED", "failure": "No module named x"},
        ),
        ({"failures": Failures(loads=3, next_try=MOMENT)}, {"failedLoads": 3, "nextTry": DESCRIBED_MOMENT}),
        (
            {"failures": Failures(last_end=(MOMENT, "Its GPU broke")), "most_rows": 4},
            {"lastEnd": {"time": DESCRIBED_MOMENT, "reason": "Its GPU broke"}, "largestBatch": 4},
        ),
    ],
    ids=["ready", "no GPU", "GPU", "not used", "node", "CPU of a node", "failed", "next try", "last end"],
)
def test_description_of_a_worker_has_its_state(changes, expected):
    described = describe_worker(worker(**changes))
    assert {name: described[name] for name in expected} == expected


@pytest.mark.parametrize(("gpus", "renewed"), [((), 0), ((None,), 0), ((None, 1, 0), 1)])
async def test_gpus_are_read_once_for_all_workers(gpus, renewed, monkeypatch):
    calls = []

    async def renew() -> bool:
        calls.append("renew")
        return True

    monkeypatch.setattr(readings, "renew", renew)
    await model(ModelOptions(), *(worker(gpu=gpu) for gpu in gpus)).read_gpus()

    assert len(calls) == renewed


def test_errors_of_requests_are_reported():
    described = model(ModelOptions(), worker())
    described.metrics.requests.failed(HandlerError("no", 404), "client")
    assert describe(described)["errors"] is None
    for request_id in ("first", "second"):
        error = HandlerError("Prediction failed", 503)
        error.cause = "KeyError: 'x' (handler.py, line 3, in handle)"
        described.metrics.requests.failed(error, request_id)
    reported = describe(described)["errors"]
    last = reported.pop("last")

    assert reported == {"count": 2, "failing": False, "types": {"KeyError": 2}}
    assert (last["type"], last["status"], last["requestId"]) == ("KeyError", 503, "second")
    assert last["message"] == "KeyError: 'x' (handler.py, line 3, in handle)"
    quiet = model(ModelOptions())
    quiet.pool.failing = True
    assert b'"failing": true' in pretty(describe(quiet))


def test_description_shows_queue_and_deadline():
    described = describe(model(ModelOptions(request_timeout=1.5)))

    assert described["jobQueueStatus"] == {"remainingCapacity": 97, "pendingRequests": 3}
    assert described["clientTimeoutInMills"] == 1500
    assert (described["minWorkers"], described["maxWorkers"]) == (1, 2)


def test_device_ids_are_absent_unless_set():
    """``deviceIds`` is left out of the answer unless the model names devices (reference 5.4)."""
    with_ids = describe(model(ModelOptions(device_ids=(0, 1))))
    without = describe(model(ModelOptions(), worker()))

    assert with_ids["deviceIds"] == [0, 1]
    assert b"deviceIds" not in pretty(without)
    assert b'"failure"' not in pretty(without)


def test_stateful_model_shows_its_sequences():
    times = {"sequence_max_idle_ms": 15, "sequence_timeout_ms": 25}
    bounds = {"max_num_sequence": 4, "max_sequence_job_queue_size": 10}
    options = ModelOptions(sequence_batching=True, use_job_ticket=True, **times, **bounds)
    described = describe(model(options, sequences={"living": 3, "waiting": 2}))

    assert (described["stateful"], described["useJobTicket"]) == (True, True)
    assert (described["sequenceMaxIdleMSec"], described["sequenceTimeoutMSec"]) == (15, 25)
    assert (described["maxNumSequence"], described["maxSequenceJobQueueSize"]) == (4, 10)
    assert described["sequences"] == {"living": 3, "waiting": 2}
    assert described["jobQueueStatus"] == {"remainingCapacity": 99, "pendingRequests": 1}


def test_description_shows_the_replacement():
    described = model(ModelOptions())
    assert describe(described)["replacement"] is None
    described.replacement = Replacement("new.mar", version="2.0")
    described.replacement.since = MOMENT
    loading = {"modelUrl": "new.mar", "modelVersion": "2.0", "status": "LOADING", "since": DESCRIBED_MOMENT}
    assert describe(described)["replacement"] == {**loading, "failure": None}
    described.replacement.failed("why")
    failed = describe(described)["replacement"]
    assert (failed["status"], failed["failure"]) == ("FAILED", "why")


def test_description_shows_why_workers_were_scaled():
    """A wait that nobody can tell is left out."""
    options = ModelOptions(autoscale=True, autoscale_target_wait=50, sources={"autoscale": "default"})
    described = model(options)
    described.pool.crew.autoscaling = scaling = PoolScaling(ScalingRule())
    rule = {"targetWait": 50, "upPause": 2000, "downPause": 60_000, "source": "default"}
    assert describe_autoscaling(described) == rule
    scaling.event = ScaleEvent(MOMENT, 1, 2, "queue_wait")
    change = {"time": DESCRIBED_MOMENT, "from": 1, "to": 2, "reason": "queue_wait"}
    for wait, waits in ((0.1234, 123), (math.inf, None)):
        scaling.sample, scaling.decision = Sample(1.0, wait, 1.987, 2), Decision(2, 3, "memory")
        load = {"queueWait": waits, "busy": 1.99, "wish": 3, "reason": "memory", "lastChange": change}

        assert describe_autoscaling(described) == {**rule, **load}
    assert describe_autoscaling(model(ModelOptions())) is None


def test_description_shows_the_precision():
    """That of the worker that has loaded last, and none if there is no choice."""
    precision = {"asked": "int8", "used": "int8", "why": "all agree"}
    described = model(ModelOptions(), worker())
    assert "precision" not in json.loads(pretty(describe(described)))
    described.pool.crew.model = Loaded(precision=precision)

    assert describe(described)["precision"] == precision


def promoting() -> ModelTraffic:
    """The traffic of the model, whose version is a shadow and is promoted."""
    workers = [SimpleNamespace(state=WorkerState.READY)]
    pool = SimpleNamespace(workers=workers, ready=True, admission=SimpleNamespace(closing=False))
    versions = {name: SimpleNamespace(version=name, pool=pool) for name in ("0.9", "1.0")}
    traffic = ModelTraffic("m")
    traffic.follow(versions, "0.9")
    bounds = {"errors": 0.1, "p99_ratio": 2, "agreement": 0.9}
    traffic.adopt(patched(Plan(), {"shadow": {"1.0": {"percent": 5}}, "sticky": "x-user", "promote": bounds}))
    traffic.promotion.note("why")
    for version in 100 * ["0.9"] + ["1.0"]:
        traffic.promoter.answered(Request("", [], [], 0), version, 0.5)
    return traffic


async def test_all_fields_are_documented():
    """The OpenAPI document names every field that a description can have, at every depth, and no others."""
    switches = {"autoscale": True, "sequence_batching": True, "device_ids": (0,)}
    bounds = {"max_worker_requests": 5, "worker_threads": 2, "batch_size": 8, "request_timeout": 1.5}
    full = ModelOptions(**switches, **bounds, values={"max_worker_memory": 1 << 30})
    precision = {"asked": "int8", "used": "fp32", "why": "classes disagree"}
    failures = Failures(loads=2, next_try=MOMENT, last_end=(MOMENT, "why"))
    failing = {"failure": "why", "failures": failures, "most_rows": 4, "process": NODE}
    one = worker(**failing, model=Loaded(precision=precision))
    described = model(full, one, sequences={"living": 1, "waiting": 1})
    described.pool.warnings = ["no weights"]
    described.pool.crew.autoscaling = scaling = PoolScaling(ScalingRule())
    scaling.sample, scaling.decision = Sample(1.0, 0.1, 1.0, 2), Decision(2, 3, "memory")
    scaling.event = ScaleEvent(MOMENT, 1, 2, "queue_wait")
    parking = {"state": "failed", "memory": 1, "need": 1, "loadTime": 1, "loads": 1, "failedLoads": 1}
    parking |= {"deviceMemory": {"0": 1}, "deviceNeed": 1, "prewarms": {"hit": 1}}
    parking |= {"parks": {"idle": 1}, "failure": "why", "nextTry": MOMENT}
    described.pool.crew.on_demand = SimpleNamespace(describe=lambda: parking)
    described.pool.crew.model = Loaded(precision=precision)
    described.replacement = Replacement("new.mar", version="2.0")
    described.replacement.failed("why")
    described.traffic = promoting()
    described.metrics.requests.failed(InternalError("no"), "r")
    failed = describe_failure(ModelVersion(*[None] * 8, failure="why"))
    reported = json.loads(pretty({**describe(described), **failed, "customizedMetadata": {}}))
    schema = schema_of("management", "ModelDescription")

    jsonschema.validate(reported, exactly(schema))
