"""Many requests at a time in one worker: continuous batching, asynchronous handlers (8.10, 8.11)."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.chunks import BrokenOff, ChunkReader, examples_under
from tests.e2e.serving import MODEL_CODE, archived, wait_until

PATH = "/predictions/three"


@pytest.fixture(scope="module")
def register(shared_server):
    """Registers a handler of ``model_code`` with a configuration of its own."""

    def registered(name, handler, config):
        archived(shared_server.settings["model_store"], name, MODEL_CODE / f"{handler}.py", config=config)
        return shared_server.registered(f"{name}.mar")

    return registered


@pytest.fixture(scope="module")
def server(register):
    """The server with a model that batches continuously, three requests at most."""
    return register("three", "turns", "continuousBatching: true\nbatchSize: 3\n")


@pytest.fixture(scope="module")
def calls(register):
    return register("calls", "meeting", "asyncCommunication: true\n")


def ask(server, name, turns, **order):
    return ChunkReader(server.port, PATH, {"name": name, "turns": turns, **order})


def steps(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_requests_join_and_leave(server, tmp_path):
    file = tmp_path / "notes"
    with ask(server, "long", 120, notes=str(file)) as long:
        _, headers = long.head()
        assert long.chunk() == b"long1 "
        with ask(server, "short", 3) as short:
            short.head()
            assert short.chunks() == [b"short1 ", b"short2 ", b"short3 "]
        ended_after = len(steps(file))
        assert long.chunks() == [f"long{turn} ".encode() for turn in range(2, 121)]

    calls = steps(file)
    together = [call for call in calls if call["batch"] == ["long", "short"]]
    assert headers["transfer-encoding"] == "chunked"
    assert ended_after < len(calls) == 120
    assert len(together) == 3
    assert [call["new"] for call in calls if call["new"]] == [["long"], ["short"]]


def test_a_client_that_leaves_leaves_the_batch(server, tmp_path):
    file = tmp_path / "notes"
    with ask(server, "stays", 200, notes=str(file)) as stays:
        stays.head()
        stays.chunk()
        with ask(server, "leaves", 100_000) as leaves:
            leaves.head()
            leaves.chunk()
        wait_until(lambda: steps(file)[-1]["batch"] == ["stays"], "it has left")
        assert stays.chunks()[-1] == b"stays200 "


def test_requests_of_a_killed_worker_fail(server):
    """All requests in the batch fail; none is sent to a worker a second time."""
    with ask(server, "a", 100_000) as first, ask(server, "b", 100_000) as second:
        for client in (first, second):
            client.head()
            client.chunk()
        os.kill(server.describe("three")["workers"][0]["pid"], signal.SIGKILL)
        for client in (first, second):
            with pytest.raises(BrokenOff):
                client.chunks()
    server.wait_ready("three")

    assert server.predict("three", {"name": "c", "turns": 1}).text == "c1 "


def test_calls_overlap(calls):
    """Ten requests wait for each other in one worker: each can only end because all have begun."""

    def ask(number):
        answer = calls.predict("calls", {"name": str(number), "meet": 10})
        return answer.text.split(), answer.headers["x-name"], answer.headers["x-request-id"]

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))

    for number, ((name, request_id), header, sent) in enumerate(answers):
        assert (name, header, request_id) == (str(number), str(number), sent)


def test_a_client_that_leaves_cancels_its_call(calls, tmp_path):
    """At once, not when the call would have ended: response_timeout is longer than the test waits."""
    began, cancelled = tmp_path / "began", tmp_path / "cancelled"
    order = {"name": "n", "do": "hang", "began": str(began), "notes": str(cancelled)}
    with ChunkReader(calls.port, "/predictions/calls", order):
        wait_until(began.exists, "the call begins")

    wait_until(cancelled.exists, "the call is cancelled")


def test_nothing_is_left_behind(calls):
    """After all responses the server has no batch in flight (TorchServe leaks some)."""
    wait_until(lambda: calls.metric("modelserver_batches_in_flight", model_name="calls") == 0, "all is over")
    assert calls.metric("modelserver_queue_requests", model_name="calls") == 0


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("Continuous batching", "continuousBatching: true\nbatchSize: 2"),
        ("Asynchronous handlers", "asyncCommunication: true"),
    ],
)
def test_handlers_of_the_guide_stream_to_several_clients(shared_server, section, line):
    """docs/streaming.md: the handlers of these sections count down in parts, for several clients."""
    name = section.split()[0].lower()
    store = shared_server.settings["model_store"]
    archived(store, name, examples_under(section)[0], config=f"{line}\n")
    shared_server.registered(f"{name}.mar")
    clients = [ChunkReader(shared_server.port, f"/predictions/{name}", count) for count in (3, 5, 2)]
    chunks = [(client.head(), client.chunks())[1] for client in clients]
    for client in clients:
        client.close()

    assert chunks == [[b"%d\n" % n for n in range(count, 0, -1)] for count in (3, 5, 2)]
