import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.surface.api import doubles

from modelserver.engine.pools.spec import WorkerState
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import InternalError
from modelserver.ext.console.facts import ConsoleState, brief_of, facts_of, figures_of, row_of
from modelserver.models.options.resolve import ModelOptions

FAILURE = "ModuleNotFoundError: <script> Its last output was:\nTraceback\nlast line"


def worker(**changes):
    process = SimpleNamespace(last_output=lambda count: "x" * 5000 + f"\n{count} lines", node=None)
    return doubles.worker(**{"pid": -1, "process": process, **changes})


def model(*workers, name="m", options=None, expected=1):
    return doubles.model(options or ModelOptions(), *workers, name=name, bounds=(expected, expected))


class Registry:
    def __init__(self, *models):
        self.models = list(models)

    def versions(self):
        return self.models

    def __contains__(self, named):
        return True

    def is_default(self, model):
        return True


def read(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


def test_figures_are_the_servers_own_counts():
    """Sums and buckets of its histograms, from which the page takes differences."""
    item = model()
    item.metrics.requests.answered(0.02, 0.001, False)
    item.metrics.batches.finished(3, 3, 8, "idle", 0.015, (0.0, 0.0, 0.0))
    item.metrics.requests.rejected("queue_full")
    item.metrics.requests.expired()
    facts = figures_of(item)

    assert (facts["latency"][0], sum(facts["latency"][1:])) == (0.02, 1)
    assert facts["latency"][1:].index(1) == 10
    assert facts["size"] == [3.0, 1]
    assert facts["fill"] == [0.375, 1]
    assert (facts["handler"][0], facts["unanswered"], facts["waiting"]) == (0.015, 2, 3)
    assert facts["errors"] == 0
    item.metrics.requests.failed(InternalError("no"), "r")
    assert figures_of(item)["errors"] == 1


@pytest.mark.parametrize(
    ("workers", "expected", "state"),
    [
        ([worker()], 1, "ready"),
        ([worker(), worker(state=WorkerState.LOADING)], 2, "degraded"),
        ([worker(state=WorkerState.LOADING)], 1, "loading"),
        ([worker(state=WorkerState.FAILED, failure="why")], 1, "failed"),
        ([worker(state=WorkerState.LOADING, failure="why")], 1, "retrying"),
        ([], 0, "empty"),
    ],
)
def test_version_has_its_state_in_one_word(workers, expected, state):
    assert facts_of(model(*workers, expected=expected), is_default=True)["state"] == state


def test_a_version_whose_batches_fail_is_failing():
    """Although its workers are ready; the last error is there with its time, request and type."""
    item = model(worker())
    item.pool.failing = True
    item.metrics.requests.failed(InternalError("no"), "r")
    facts = facts_of(item, is_default=True)

    assert facts["state"] == "failing"
    assert (facts["errors"]["count"], facts["errors"]["types"]) == (1, {"InternalError": 1})
    assert {**facts["errors"]["last"], "time": ""} == {
        "time": "",
        "type": "InternalError",
        "status": 500,
        "message": "no",
        "requestId": "r",
    }


def test_a_failed_worker_tells_why_and_what_it_printed():
    """The reason with the quoted output, as describe has it; a living worker has its last lines, bounded."""
    failed = worker(state=WorkerState.FAILED, failure=FAILURE, process=None)
    facts = facts_of(model(failed, worker()), is_default=False)

    assert facts["failure"] == facts["workers"][0]["failure"] == FAILURE
    assert facts["workers"][0]["output"] == ""
    assert facts["workers"][1]["output"].endswith("\n20 lines")
    assert len(facts["workers"][1]["output"]) == 4000


def test_options_have_their_sources():
    """Every option of the version, as text; one with parts shows those that were set."""
    options = ModelOptions(batch_size=8, device_ids=(0, 1), sources={"batch_size": "model-config.yaml"})
    resources = replace(ModelOptions().resources, num_gpus=2.0)
    options = replace(options, resources=resources, traffic={"1.0": 90})
    rows = facts_of(model(options=options), is_default=True)["options"]
    facts = {name: (value, source) for name, value, source in rows}

    assert facts["batchSize"] == ("8", "model-config.yaml")
    assert (facts["deviceIds"][0], facts["traffic"][0]) == ("0,1", '{"1.0": 90}')
    assert (facts["resources"], facts["signature"]) == (("num_gpus=2.0", "default"), ("", "default"))


async def test_events_have_what_changed():
    """The first has all rows, later ones those that differ; what is gone is in no figures any more. Facts are
    of open pages only.
    """
    registry = Registry(model(worker(), name="a"), model(worker(), name="<b>"))
    state = ConsoleState(registry, ServerMetrics())
    first, _ = await state.collect()
    again = [read((await state.collect())[0]) for _ in range(2)]
    registry.models[0].pool.min_workers = 2
    changed = [read((await state.collect())[0]) for _ in range(2)]
    facts = [read((await state.collect({"a/1.0"}))[0])["facts"] for _ in range(2)]
    registry.models[0].url = "other.mar"
    facts.append(read((await state.collect({"a/1.0"}))[0])["facts"])
    registry.models.pop()
    gone = read((await state.collect())[0])

    assert list(read(first)["rows"]) == list(read(first)["figures"]) == ["a/1.0", "<b>/1.0"]
    assert [each["rows"] for each in again] == [{}, {}]
    assert [list(each["rows"]) for each in changed] == [["a/1.0"], []]
    assert [list(each) for each in facts] == [["a/1.0"], [], ["a/1.0"]]
    assert facts[2]["a/1.0"]["modelUrl"] == "other.mar"
    assert list(gone["figures"]) == ["a/1.0"]
    assert (list(read(state.whole())["rows"]), read(state.whole())["facts"]) == (["a/1.0"], {})
    assert {each["facts"] == {} for each in (read(first), *again, *changed)} == {True}
    assert len({each["life"] for each in (*again, *changed, gone)}) == 1
    assert read((await ConsoleState(registry, ServerMetrics()).collect())[0])["life"] != gone["life"]


def test_a_model_that_is_loaded_on_demand_is_parked():
    """While it has no workers; a worker that loads, or failed, says more."""
    item, failed = model(), model(worker(state=WorkerState.FAILED, failure="why"))
    for each in (item, failed):
        each.pool.crew.on_demand = SimpleNamespace(describe=lambda: {"state": "parked"})

    assert facts_of(item, is_default=True)["state"] == "parked"
    assert facts_of(failed, is_default=True)["state"] == "failed"


async def test_all_figures_are_those_of_open_pages():
    """Of the others there are a few; a page that is opened gets its first at once."""
    registry = Registry(*(model(worker(), name=name) for name in "ab"))
    state = ConsoleState(registry, ServerMetrics())
    closed = read((await state.collect())[0])
    event = read((await state.collect({"b/1.0", "gone/1.0", ""}))[0])

    assert (closed["full"], list(event["full"])) == ({}, ["b/1.0"])
    assert closed["figures"]["a/1.0"] == [0, 0, 0, 3, None, None]
    assert {"latency", "parts"} <= event["bounds"].keys()
    opened = state.opened("a/1.0")
    assert (list(opened["full"]), opened["life"]) == (["a/1.0"], closed["life"])
    assert json.loads(bytes(opened["facts"]["a/1.0"]))["state"] == "ready"
    assert opened["bounds"].keys() == event["bounds"].keys()
    assert state.opened("gone/1.0")["full"] == {}


async def test_figures_of_a_thousand_models_are_small():
    """An event has less than 100 bytes for each; the first, with the rows of the table, less than 200."""
    models = [model(worker(), name=f"model_{number}") for number in range(1000)]
    registry = Registry(*models)
    state = ConsoleState(registry, ServerMetrics())
    await state.collect()
    first = state.whole()
    for item in models:
        item.metrics.requests.answered(0.0203, 0.001, False)
    event, _ = await state.collect()

    assert len(first) < 200_000
    assert len(event) < 100_000
    assert len(read(event)["figures"]) == 1000


def test_percentiles_are_of_what_came_since():
    """Nothing without requests; later ones than the last bound are as long as that."""
    item = model()
    item.metrics.requests.answered(5.0, 0.001, False)
    before = list(item.metrics.requests.seconds.counts)
    assert brief_of(item, before) == [1, 0, 0, 3, None, None]
    item.metrics.requests.answered(0.02, 0.001, False)
    answered, _, _, _, p50, p99 = brief_of(item, before)

    assert answered == 2
    assert 10 < p50 < p99 <= 25
    assert brief_of(item, None)[4:] == [None, None]


async def test_many_models_do_not_hold_the_loop_up(monkeypatch):
    """The event loop runs other work between versions, and the time of the reading is reported."""
    monkeypatch.setattr("modelserver.ext.console.stopwatch.STRETCH", 0.0)
    registry = Registry(*(model(worker(), name=f"m{number}") for number in range(5)))
    coroutine = ConsoleState(registry, ServerMetrics()).collect({"m0/1.0", "m1/1.0"})
    turns = 0
    try:
        while True:
            coroutine.send(None)
            turns += 1
    except StopIteration as end:
        _, spent = end.value

    assert turns == 7
    assert spent > 0


def test_rows_have_what_the_table_shows():
    """Workers that are ready and wished, memory, share of the traffic, and the last error."""
    item = model(worker(), worker(state=WorkerState.LOADING), expected=2)
    node = SimpleNamespace(last_output=lambda _: "", node=SimpleNamespace(resident=3 << 20))
    item.pool.workers.append(worker(process=node))
    plain = row_of(item, is_default=True)
    item.pool.crew.autoscaling = SimpleNamespace(wish=5)
    item.traffic = SimpleNamespace(describe=lambda version: {"effective": 12.5})
    item.metrics.requests.failed(InternalError("no"), "r")
    row = row_of(item, is_default=False)

    assert plain == ["m", "1.0", "degraded", True, 1, 2, 3, "cpu", None]
    assert row[:9] == ["m", "1.0", "degraded", False, 1, 5, 3, "cpu", 12.5]
    assert row[10] == "InternalError"


def test_endpoints_of_a_language_model_are_known():
    """The page has a chat for those that have one."""
    item = model(worker())
    item.endpoints = {"v1/completions": False, "v1/chat/completions": False}

    assert facts_of(item, is_default=True)["endpoints"] == ["v1/chat/completions", "v1/completions"]


async def test_language_models_have_figures_of_their_own():
    """Where there is a model with endpoints; others have none."""
    metrics = ServerMetrics()
    labels = ("model_name", "model_version")
    metrics.counter("modelserver_completion_tokens_total", "", labels).labels("m", "1.0").add(7)
    talking, other = model(worker()), model(worker(), name="other")
    registry = Registry(talking, other)
    state = ConsoleState(registry, metrics)
    before = read((await state.collect({"m/1.0"}))[0])
    talking.endpoints = {"v1/chat/completions": False}
    event = read((await state.collect({"m/1.0", "other/1.0"}))[0])

    assert before["full"]["m/1.0"]["language"] is None
    assert event["full"]["other/1.0"]["language"] is None
    assert event["full"]["m/1.0"]["language"] == {"tokensOut": 7}
