"""Stateful models over real sockets: sequences, tickets, the server's own deadline (reference 8.7-8.9).

What queue and pool do with sequences is tested in tests/ext/sequences, on a clock of their own.
"""

import os
import signal

import pytest
import yaml
from tests.e2e.serving import MODEL_CODE, ROOT, Home, Server, archived, serving, wait_until

ID, START, END = (f"ts_request_sequence_{name}" for name in ("id", "start", "end"))
BATCHED = {"batchSize": 4, "sequenceBatching": True, "sequenceMaxIdleMSec": 60000}
WIDE = {**BATCHED, "minWorkers": 2, "maxWorkers": 2, "maxNumSequence": 64, "maxSequenceJobQueueSize": 8}
NARROW = {**WIDE, "minWorkers": 1, "maxWorkers": 1, "maxNumSequence": 2, "maxSequenceJobQueueSize": 1}
MODELS = {
    "wide": ("sums", WIDE),
    "narrow": ("sums", NARROW),
    "careless": ("sums", {"sequenceBatching": True}),
    "continuous": ("talks", {**NARROW, "continuousBatching": True, "maxSequenceJobQueueSize": 4}),
    "tickets": ("obey", {"useJobTicket": True, "clientTimeoutInMills": 600}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One with an archive of each configuration, and the example of the documentation."""
    store = tmp_path_factory.mktemp("store")
    for name, (handler, config) in MODELS.items():
        archived(store, name, MODEL_CODE / f"{handler}.py", config=yaml.safe_dump(config))
    example = ROOT / "examples" / "stateful"
    archived(store, "sum", example / "sum_handler.py", config_file=example / "model-config.yaml")
    with serving(Server(Home(tmp_path_factory.mktemp("home")), store)) as server:
        yield server


@pytest.fixture
def model(server, request):
    names = []

    def register(url, **parameters):
        name = request.node.name + str(len(names))
        server.registered(f"{url}.mar", model_name=name, **{"initial_workers": None, **parameters})
        names.append(name)
        return name

    yield register
    for name in names:
        server.unregister(name)


def send(server, name, sequence=None, order=None, **headers):
    if sequence is not None:
        headers = {ID: sequence, **headers}
    return server.predict(name, order or {}, headers=headers)


def step(server, name, sequence, order=None, **headers):
    response = send(server, name, sequence, order, **headers)
    assert response.status_code == 200, response.text
    assert response.headers[ID] == sequence
    return response.json()


def wait_sequences(server, name, **counts):
    wait_until(lambda: counts.items() <= server.describe(name)["sequences"].items(), f"{name} has {counts}")


def test_many_sequences_share_batches(server, model, pool):
    """Interleaved sequences keep their order and their worker (F23)."""
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


def test_handler_and_client_end_sequences(server, model):
    """The handler's header ends those that it names, and reaches the client; a request that says it is the
    last frees the place of its sequence. Without sequenceMaxIdleMSec it is a minute; describe shows the
    bounds.
    """
    name, careless = model("narrow"), model("careless", initial_workers=1)
    step(server, name, "a")
    assert send(server, name, "b", {"end": "a;b"}).headers[END] == "a;b"
    assert server.describe(name)["sequences"]["living"] == 0
    for number in range(4):
        step(server, name, f"seq-{number}", **{START: "true"})
        step(server, name, f"seq-{number}", **{END: "true"})
    assert server.describe(name)["sequences"]["living"] == 0
    assert step(server, careless, "a", {"add": 1})["seen"] == [1]
    described = server.describe(name)
    assert (described["stateful"], described["maxNumSequence"]) == (True, 2)
    assert (described["sequenceTimeoutMSec"], described["maxSequenceJobQueueSize"]) == (0, 1)
    assert server.describe(careless)["sequenceMaxIdleMSec"] == 60000
    server.home.wait_for_log("sequenceBatching needs a sequenceMaxIdleMSec of at least 1")


def test_killed_worker_loses_its_sequences(server, model, pool):
    """It says so; the others go on, new ones begin (F39)."""
    name = model("wide")
    homes = {sequence: step(server, name, sequence, {"add": 1})["pid"] for sequence in "abcdefgh"}
    victim = homes["a"]
    lost = [sequence for sequence, pid in homes.items() if pid == victim]
    others = [sequence for sequence in homes if sequence not in lost]
    running = pool.submit(send, server, name, lost[0], {"sleep": 3})
    server.wait_busy(name)
    waiting = [pool.submit(send, server, name, sequence) for sequence in lost]
    wait_sequences(server, name, waiting=len(lost))
    os.kill(victim, signal.SIGKILL)

    assert len(lost) == len(others) == 4
    assert (running.result().status_code, running.result().json()["message"]) == (500, "Worker died.")
    for sequence, response in zip(lost, (future.result() for future in waiting), strict=True):
        assert response.status_code == 500
        assert response.json()["message"] == (
            f"Worker died. The state of sequence {sequence} is lost with it. Begin it anew with the header "
            "ts_request_sequence_start: true, or under another id."
        )
        assert send(server, name, sequence).status_code == 500
    assert server.metric("modelserver_rejected_total", model_name=name, reason="sequence_lost") == len(lost)
    assert [step(server, name, sequence, {"add": 2})["seen"] for sequence in others] == [[1, 2]] * 4
    assert step(server, name, "new", {"add": 1})["pid"] == homes[others[0]]
    assert step(server, name, lost[0], {"add": 3}, **{START: "true"})["seen"] == [3]
    server.wait_ready(name, 2)
    assert len({step(server, name, f"later-{number}")["pid"] for number in range(8)}) == 2


def test_job_ticket_needs_an_idle_worker(server, model, pool, tmp_path):
    """With useJobTicket a request that no idle worker could take is refused at once (reference 8.8); with
    clientTimeoutInMills a request is answered 504 when the time is over, where TorchServe never answers
    (F33, F34), and the worker is kept.
    """
    name = model("tickets", initial_workers=1)
    described = server.describe(name)
    assert (described["useJobTicket"], described["clientTimeoutInMills"]) == (True, 600)
    wait_until(lambda: server.predict(name, {"do": "nothing"}).status_code == 200, "it is served in time")
    with server.occupied(pool, name, tmp_path / "over") as running:
        refused = server.predict(name, {"do": "nothing"})
        assert running.result().status_code == 504

    assert (refused.status_code, refused.json()["type"]) == (503, "ServiceUnavailableException")
    wait_until(lambda: server.predict(name, {"do": "nothing"}).status_code == 200, "the worker is kept")


def test_sequences_share_a_continuous_batch(server, model, pool, tmp_path):
    """Sequences share a worker's continuous batch; a request waits for the one before it in its sequence."""
    name = model("continuous")
    one, over = {"add": 1, "parts": 1}, tmp_path / "over"
    futures = []
    for sequence, order in (("a", {**one, "until": str(over)}), ("a", one), ("b", one)):
        futures.append(pool.submit(send, server, name, sequence, order))
        server.wait_arrived(name, len(futures))
    other = futures[2].result()
    over.touch()
    first, second = (future.result() for future in futures[:2])

    assert first.text.split()[-1] == "1/1"
    assert "1/2" in first.text
    assert (second.text, other.text) == ("2/1 ", "1/2 ")
    assert (first.headers[ID], first.headers[START]) == ("a", "true")
    assert START not in second.headers
    assert send(server, name, "a", {"add": 100, "parts": 2}).headers[END] == "a"
    assert server.describe(name)["sequences"]["living"] == 1


def test_example_sums_up_sequences(server):
    """examples/stateful adds up each sequence, refuses what is no number, and ends what is over."""
    server.registered("sum.mar", initial_workers=None)

    def add(number, sequence=None, **headers):
        headers = {"content-type": "application/json", **headers, **({ID: sequence} if sequence else {})}
        return server.predict("sum", str(number), headers=headers)

    first = add(1)
    assert first.json() == {"sequence": first.headers[ID], "sum": 1}
    assert add(2, first.headers[ID]).json()["sum"] == 3
    assert [add(number, "mine").json()["sum"] for number in (1, 2)] == [1, 3]
    assert add("[]", "mine").status_code == 400
    assert add(3, "mine", **{END: "true"}).json()["sum"] == 6
    assert add(1, "mine").json()["sum"] == 1
    assert add(99, "mine").headers[END] == "mine"
    assert server.describe("sum")["sequences"]["living"] == 1
    server.unregister("sum")
