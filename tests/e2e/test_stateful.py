"""Stateful models over real sockets: sequences, tickets, the server's own deadline (reference 8.7-8.9)."""

from __future__ import annotations

import os
import signal

import pytest
from tests.e2e.serving import ROOT, Home, Server, serving, wait_until

from modelserver.tools.archiver import ArchiveConfig, build_archive

MODEL_CODE = ROOT / "tests" / "e2e" / "model_code"
ID, START, END = (f"ts_request_sequence_{name}" for name in ("id", "start", "end"))
WIDE = {
    "minWorkers": 2,
    "maxWorkers": 2,
    "batchSize": 4,
    "sequenceBatching": "true",
    "sequenceMaxIdleMSec": 60000,
    "maxNumSequence": 64,
    "maxSequenceJobQueueSize": 8,
}
NARROW = {**WIDE, "minWorkers": 1, "maxWorkers": 1, "maxNumSequence": 2, "maxSequenceJobQueueSize": 1}
MODELS = {
    "wide": ("sums", WIDE),
    "narrow": ("sums", NARROW),
    "hasty": ("sums", {**NARROW, "sequenceMaxIdleMSec": 300}),
    "aged": ("sums", {**NARROW, "sequenceTimeoutMSec": 400}),
    "careless": ("sums", {"sequenceBatching": "true"}),
    "continuous": ("talks", {**NARROW, "continuousBatching": "true", "maxSequenceJobQueueSize": 4}),
    "tickets": ("obey", {"useJobTicket": "true"}),
    "impatient": ("obey", {"clientTimeoutInMills": 200}),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A model store with an archive of each configuration."""
    store, configs = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("configs")
    for name, (handler, config) in MODELS.items():
        path = configs / f"{name}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in config.items()))
        code = str(MODEL_CODE / f"{handler}.py")
        build_archive(ArchiveConfig(name, code, "1.0", export_path=store, config_file=path))
    return store


@pytest.fixture(scope="module")
def server(tmp_path_factory, store):
    """One server for all tests here."""
    with serving(Server(Home(tmp_path_factory.mktemp("home")), store)) as server:
        yield server


@pytest.fixture
def model(server, request):
    """Registers a configuration under a name of the test's own."""
    names = []

    def register(url, **parameters):
        name = request.node.name + str(len(names))
        answer = server.management.post(
            "/models", params={"url": f"{url}.mar", "model_name": name, **parameters}
        )
        assert answer.status_code == 200, answer.text
        names.append(name)
        return name

    yield register
    for name in names:
        server.unregister(name)


def ask(server, name, sequence=None, order=None, **headers):
    """One step; its answer."""
    if sequence is not None:
        headers = {ID: sequence, **headers}
    return server.predict(name, order or {}, headers=headers)


def step(server, name, sequence, order=None, **headers):
    """What the handler says of a step that went well."""
    answer = ask(server, name, sequence, order, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers[ID] == sequence
    return answer.json()


def wait_sequences(server, name, **counts):
    """Until so many live or wait."""
    wait_until(lambda: counts.items() <= server.describe(name)["sequences"].items(), f"{name} has {counts}")


def test_many_sequences(server, model, pool):
    """Interleaved sequences keep their order and their worker, and share batches (F23)."""
    name = model("wide")

    def run(sequence):
        return [step(server, name, sequence, {"add": number, "sleep": 0.002}) for number in range(10)]

    runs = dict(zip(names := [f"seq-{n}" for n in range(24)], pool.map(run, names), strict=True))

    for sequence, answers in runs.items():
        assert [answer["seen"] for answer in answers] == [list(range(n + 1)) for n in range(10)]
        assert {answer["id"] for answer in answers} == {sequence}
        assert len({answer["pid"] for answer in answers}) == 1
    homes = [answers[0]["pid"] for answers in runs.values()]
    assert sorted(homes.count(pid) for pid in set(homes)) == [12, 12]
    batches = [answer["with"] for answers in runs.values() for answer in answers]
    assert all(len(set(batch)) == len(batch) for batch in batches)
    assert max(len(batch) for batch in batches) > 1


def test_waiting_steps_run_in_order(server, model, pool):
    """Steps that wait for a running one of their sequence run after it, in the order in which they came."""
    name = model("wide")
    futures = [pool.submit(step, server, name, "a", {"add": 0, "sleep": 0.6})]
    wait_until(lambda: server.metric("modelserver_batches_in_flight", model_name=name), "it runs")
    for number in range(1, 4):
        futures.append(pool.submit(step, server, name, "a", {"add": number}))
        wait_sequences(server, name, waiting=number)

    assert [future.result()["seen"] for future in futures] == [list(range(n + 1)) for n in range(4)]
    assert server.describe(name)["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}


def test_unnamed_sequence(server, model):
    """A request without an id begins a sequence; handler and client are told which."""
    name = model("wide")
    first = ask(server, name, order={"add": 1})
    second = step(server, name, first.headers[ID], {"add": 2})

    assert first.headers[ID].startswith("ts-seq-")
    assert first.headers[START] == "true"
    assert first.json()["id"] == first.headers[ID]
    assert (first.json()["start"], second["start"]) == ("true", None)
    assert second["seen"] == [1, 2]
    assert ask(server, name).headers[ID] != first.headers[ID]


def test_rows_of_a_v1_request(server, model):
    """The instances of a V1 request are steps, one after the other."""
    name = model("wide")
    answer = server.inference.post(
        f"/v1/models/{name}:predict", json={"instances": [1, 2, 3]}, headers={ID: "rows"}
    )

    assert [row["seen"] for row in answer.json()["predictions"]] == [[1], [1, 2], [1, 2, 3]]
    assert answer.headers[ID] == "rows"
    assert step(server, name, "rows", {"add": 4})["seen"] == [1, 2, 3, 4]


def test_bounds(server, model, pool):
    """Too many sequences, and too many requests of one, are refused at once; the others go on."""
    name = model("narrow")
    running = pool.submit(step, server, name, "a", {"add": 1, "sleep": 0.6})
    wait_sequences(server, name, living=1, waiting=0)
    waiting = pool.submit(step, server, name, "a", {"add": 2})
    wait_sequences(server, name, waiting=1)
    pool.submit(step, server, name, "b")
    wait_sequences(server, name, living=2)
    refused = [ask(server, name, sequence) for sequence in ("a", "c", None)]

    for answer in refused:
        assert answer.status_code == 503
        assert answer.json()["type"] == "ServiceUnavailableException"
        assert answer.json()["message"].startswith(
            f'Model "{name}" has no worker to serve inference request. '
        )
        assert "please check if it is closed, or expired" in answer.json()["message"]
        assert answer.headers["retry-after"]
    assert (running.result()["seen"], waiting.result()["seen"]) == ([1], [1, 2])


def test_described(server, model):
    """Describe shows the bounds (reference 5.4), and the sequences that live."""
    name = model("aged")
    step(server, name, "a")
    described = server.describe(name)

    assert (described["stateful"], described["maxNumSequence"]) == (True, 2)
    assert (described["sequenceMaxIdleMSec"], described["sequenceTimeoutMSec"]) == (60000, 400)
    assert described["maxSequenceJobQueueSize"] == 1
    assert described["sequences"] == {"living": 1, "waiting": 0}


def test_no_idle_time_given(server, model):
    """Without sequenceMaxIdleMSec it is a minute; TorchServe fails every request."""
    name = model("careless", initial_workers=1)

    assert step(server, name, "a", {"add": 1})["seen"] == [1]
    assert server.describe(name)["sequenceMaxIdleMSec"] == 60000
    server.home.wait_for_log("sequenceBatching needs a sequenceMaxIdleMSec of at least 1")


def test_idle_sequence_ends(server, model):
    """An idle sequence makes place by itself; later its name begins another, and the client is told."""
    name = model("hasty")
    for sequence in "ab":
        step(server, name, sequence, {"add": 1})
    assert ask(server, name, "c").status_code == 503
    wait_sequences(server, name, living=0)

    assert step(server, name, "c")["id"] == "c"
    assert ask(server, name, "a").headers[START] == "true"
    assert START not in ask(server, name, "a").headers


def test_old_sequence_ends(server, model, pool):
    """A sequence ends at its age, however busy: what waits then is refused, what runs is answered."""
    name = model("aged")
    running = pool.submit(ask, server, name, "a", {"sleep": 0.7})
    wait_sequences(server, name, living=1, waiting=0)
    waiting = pool.submit(ask, server, name, "a")

    assert running.result().status_code == 200
    assert waiting.result().status_code == 503
    assert ask(server, name, "a").headers[START] == "true"


def test_handler_ends_sequences(server, model):
    """The handler's header ends those that it names, and reaches the client too."""
    name = model("narrow")
    step(server, name, "a")
    answer = ask(server, name, "b", {"end": "a;b"})

    assert answer.headers[END] == "a;b"
    assert server.describe(name)["sequences"]["living"] == 0


def test_client_ends_its_sequence(server, model):
    """A request that says it is the last frees the place of its sequence."""
    name = model("narrow")
    for number in range(4):
        step(server, name, f"seq-{number}", **{START: "true"})
        step(server, name, f"seq-{number}", **{END: "true"})

    assert server.describe(name)["sequences"]["living"] == 0


def test_failures_are_not_tried_again(server, model, pool):
    """A batch that fails is not run again in halves: a sequence would take a step twice."""
    name = model("narrow")
    busy = pool.submit(step, server, name, "a", {"add": 1, "sleep": 0.5})
    wait_sequences(server, name, living=1, waiting=0)
    bad = pool.submit(ask, server, name, "b", {"add": 2, "raise": True})
    wait_sequences(server, name, living=2)
    also = pool.submit(ask, server, name, "a", {"add": 3})
    busy.result()

    assert sorted([bad.result().status_code, also.result().status_code])[-1] == 503
    seen = [step(server, name, sequence, {"add": 4})["seen"] for sequence in "ab"]
    assert seen[1] == [2, 4]
    assert seen[0] in ([1, 3, 4], [1, 4])


def test_killed_worker(server, model, pool):
    """A killed worker takes its sequences along and says so; the others go on, new ones begin (F39)."""
    name = model("wide")
    homes = {sequence: step(server, name, sequence, {"add": 1})["pid"] for sequence in "abcdefgh"}
    victim = homes["a"]
    lost = [sequence for sequence, pid in homes.items() if pid == victim]
    kept = [sequence for sequence in homes if sequence not in lost]
    running = pool.submit(ask, server, name, lost[0], {"sleep": 3})
    wait_until(lambda: server.metric("modelserver_batches_in_flight", model_name=name), "it runs")
    waiting = [pool.submit(ask, server, name, sequence) for sequence in lost]
    wait_sequences(server, name, waiting=len(lost))
    os.kill(victim, signal.SIGKILL)

    assert len(lost) == len(kept) == 4
    assert (running.result().status_code, running.result().json()["message"]) == (500, "Worker died.")
    for sequence, answer in zip(lost, (future.result() for future in waiting), strict=True):
        assert answer.status_code == 500
        assert f"The state of sequence {sequence} is lost" in answer.json()["message"]
        assert ask(server, name, sequence).status_code == 500
    assert [step(server, name, sequence, {"add": 2})["seen"] for sequence in kept] == [[1, 2]] * 4
    assert step(server, name, "new", {"add": 1})["pid"] == homes[kept[0]]
    assert step(server, name, lost[0], {"add": 3}, **{START: "true"})["seen"] == [3]
    server.wait_ready(name, 2)
    later = {step(server, name, f"later-{number}")["pid"] for number in range(8)}
    assert len(later) == 2


def test_scaled_down(server, model):
    """A worker that is to go serves its sequences to their end, and no new ones."""
    name = model("wide")
    homes = {sequence: step(server, name, sequence, {"add": 1})["pid"] for sequence in "ab"}
    stays, goes = (worker["pid"] for worker in server.describe(name)["workers"])
    assert server.management.put(f"/models/{name}", params={"min_worker": 1, "max_worker": 1}).is_success
    last = next(sequence for sequence, pid in homes.items() if pid == goes)

    assert step(server, name, last, {"add": 2}) | {"with": 0, "start": 0} == {
        "id": last, "seen": [1, 2], "pid": goes, "with": 0, "start": 0
    }  # fmt: skip
    assert {step(server, name, f"new-{number}")["pid"] for number in range(3)} == {stays}
    step(server, name, last, **{END: "true"})
    wait_until(lambda: goes not in {process.pid for process in server.workers()}, "the worker leaves")


def test_headers_of_the_operators_own(tmp_path, store):
    """The keys ``ts_header_key_sequence_*`` name the headers for server and handler alike (reference 3.3)."""
    names = {"id": "X-Talk", "start": "X-Talk-Start", "end": "X-Talk-End"}
    settings = {f"ts_header_key_sequence_{key}": name for key, name in names.items()}
    with serving(Server(Home(tmp_path), store, settings=settings)) as server:
        server.registered("narrow.mar", model_name="m")
        first = server.predict("m", {"add": 1})
        second = server.predict(
            "m", {"add": 2, "end": first.headers["X-Talk"]}, headers={"x-talk": first.headers["X-Talk"]}
        )

        assert (first.headers["X-Talk-Start"], first.json()["start"]) == ("true", "true")
        assert second.json()["seen"] == [1, 2]
        assert second.headers["X-Talk-End"] == first.headers["X-Talk"]
        assert server.describe("m")["sequences"]["living"] == 0


def test_job_tickets(server, model, pool):
    """With useJobTicket a request that no idle worker could take is refused at once (reference 8.8)."""
    name = model("tickets", initial_workers=1)
    assert server.describe(name)["useJobTicket"] is True
    assert server.predict(name, {"do": "nothing"}).status_code == 200
    busy = pool.submit(server.predict, name, {"do": "sleep", "seconds": 0.6})
    wait_until(lambda: server.metric("modelserver_batches_in_flight", model_name=name), "it runs")
    refused = server.predict(name, {"do": "nothing"})

    assert refused.status_code == 503
    assert refused.json()["type"] == "ServiceUnavailableException"
    assert busy.result().status_code == 200
    assert server.predict(name, {"do": "nothing"}).status_code == 200


def test_client_timeout(server, model, pool):
    """clientTimeoutInMills answers 504 when the time is over, where TorchServe never answers (F33, F34)."""
    name = model("impatient", initial_workers=1)
    running = pool.submit(server.predict, name, {"do": "sleep", "seconds": 0.8})
    wait_until(lambda: server.metric("modelserver_batches_in_flight", model_name=name), "it runs")
    waiting = server.predict(name, {"do": "nothing"})

    assert (running.result().status_code, waiting.status_code) == (504, 504)
    assert server.describe(name)["clientTimeoutInMills"] == 200
    wait_until(lambda: server.predict(name, {"do": "nothing"}).status_code == 200, "the worker is kept")


def test_continuous_batching(server, model, pool):
    """Sequences share a worker's continuous batch; a request waits for the one before it in its sequence."""
    name = model("continuous")
    orders = [("a", 40), ("a", 1), ("b", 1)]
    futures = []
    for sequence, parts in orders:
        futures.append(pool.submit(ask, server, name, sequence, {"add": 1, "parts": parts}))
        wait_until(
            lambda: server.metric("ts_inference_requests_total", model_name=name) == len(futures), "sent"
        )
    first, second, other = (future.result() for future in futures)

    assert first.text.split()[0] == "1/1"
    assert "1/2" in first.text
    assert second.text == "2/1 "
    assert other.text == "1/2 "
    assert (first.headers[ID], first.headers[START]) == ("a", "true")
    assert START not in second.headers
    assert ask(server, name, "a", {"add": 100, "parts": 2}).headers[END] == "a"
    assert server.describe(name)["sequences"]["living"] == 1


def test_example(tmp_path):
    """examples/stateful adds up each sequence, refuses what is no number, and ends what is over."""
    folder = ROOT / "examples" / "stateful"
    build_archive(
        ArchiveConfig(
            "sum",
            str(folder / "sum_handler.py"),
            "1.0",
            export_path=tmp_path,
            config_file=folder / "model-config.yaml",
        )
    )
    with serving(Server(Home(tmp_path / "home"), tmp_path)) as server:
        assert server.management.post("/models", params={"url": "sum.mar"}).is_success

        def add(number, sequence=None, **headers):
            headers = {"content-type": "application/json", **headers, **({ID: sequence} if sequence else {})}
            return server.predict("sum", str(number), headers=headers)

        begun = add(1)
        assert begun.json() == {"sequence": begun.headers[ID], "sum": 1}
        assert add(2, begun.headers[ID]).json()["sum"] == 3
        assert [add(number, "mine").json()["sum"] for number in (1, 2)] == [1, 3]
        assert add("[]", "mine").status_code == 400
        assert add(3, "mine", **{END: "true"}).json()["sum"] == 6
        assert add(1, "mine").json()["sum"] == 1
        assert add(99, "mine").headers[END] == "mine"
        assert server.describe("sum")["sequences"]["living"] == 1
