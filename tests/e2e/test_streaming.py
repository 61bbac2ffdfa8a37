"""Answers in parts over real sockets: order, heads, neighbours, failures, clients that leave or wait."""

import psutil
import pytest
from tests.e2e.chunks import BrokenOff, ChunkReader, examples_under
from tests.e2e.serving import ROOT, archived, wait_until

PATH = "/predictions/parts"


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server.registered("parts.mar", response_timeout=5)


@pytest.fixture(scope="module")
def batches(server):
    server.registered("parts.mar", model_name="four", batch_size=4, max_batch_delay=20_000)
    return server


def ask(server, order, path=PATH, **arguments):
    return ChunkReader(server.port, path, order, **arguments)


def notes(path):
    return path.read_text().split() if path.exists() else []


def test_each_part_is_a_chunk(server):
    """Three intermediate parts and the returned one are four chunks, whatever their types (reference 6.6);
    the head has the handler's status, type and headers, and the connection is used again.
    """
    with ask(server, {"parts": ["a", {"b": 1}, "cc"], "last": "d"}) as client:
        status, headers = client.head()
        chunks = client.chunks()

    assert status == 200
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers
    assert "ts_stream_next" not in headers
    assert headers["x-batch-size"] == "1"
    assert chunks == [b"a", b'{\n  "b": 1\n}', b"cc", b"d"]

    lines = {"Content-Type": "text/event-stream", "x-a": "b"}
    order = {"parts": ["data: 1\n\n"], "status": 206, "headers": lines}
    with ask(server, order) as client:
        status, headers = client.head()
        chunks = client.chunks()

    assert (status, headers["content-type"], headers["x-a"]) == (206, "text/event-stream", "b")
    assert chunks == [b"data: 1\n\n"]

    for _ in range(2):
        answer = server.predict("parts", {"parts": ["a", "b"], "last": "c"})
        assert answer.text == "abc"
        assert answer.headers["connection"] == "keep-alive"


def test_a_part_is_sent_before_the_next_is_computed(server, tmp_path):
    order = {"parts": ["one", "two", "three"], "last": "end", "gates": str(tmp_path)}
    with ask(server, order) as client:
        (tmp_path / "0").touch()
        client.head()
        seen = [client.chunk()]
        for step in (1, 2):
            (tmp_path / str(step)).touch()
            seen.append(client.chunk())

        assert seen == [b"one", b"two", b"three"]
        assert client.chunks() == [b"end"]


def test_rows_of_a_batch_stream_to_their_clients(batches):
    orders = [
        {"parts": [f"{n}{step} " for step in range(n + 1)], "last": f"end{n}", "headers": {"x-n": str(n)}}
        for n in range(4)
    ]
    clients = [ask(batches, order, "/predictions/four") for order in orders]
    answers = [(client.head(), client.chunks()) for client in clients]
    for client in clients:
        client.close()

    assert [headers["x-n"] for (_, headers), _ in answers] == ["0", "1", "2", "3"]
    assert {headers["x-batch-size"] for (_, headers), _ in answers} == {"4"}
    assert len({headers["x-batch-id"] for (_, headers), _ in answers}) == 1
    for n, (_, chunks) in enumerate(answers):
        assert chunks == [f"{n}{step} ".encode() for step in range(n + 1)] + [f"end{n}".encode()]


@pytest.mark.parametrize("generator", [True, False], ids=["generator", "handler"])
def test_failure_after_the_first_part_closes_the_connection(server, generator):
    """Without the last chunk; it is logged and counted, and the worker keeps running."""
    pid = server.describe("parts")["workers"][0]["pid"]
    broken, errors = (server.metric(n) for n in ("modelserver_broken_off_total", "Requests5XX"))
    with ask(server, {"parts": ["a", "b"], "fail_at": 1, "how": "raises", "generator": generator}) as client:
        status, headers = client.head()
        assert (status, client.chunk()) == (200, b"a")
        with pytest.raises(BrokenOff):
            client.chunk()

    assert server.metric("modelserver_broken_off_total") == broken + 1
    assert server.metric("Requests5XX") == errors + 1
    line = f"Request {headers['x-request-id']}: the answer broke off"
    server.home.wait_for_log(line)
    assert server.home.log().count(line) == 1
    assert server.predict("parts", {"parts": [], "last": "ok"}).text == "ok"
    assert server.describe("parts")["workers"][0]["pid"] == pid


def test_client_sees_that_a_killed_worker_cut_its_stream(server):
    """The client sees an incomplete answer, by a missing chunk or a reset; a new worker serves (F39)."""
    order = {"parts": ["a", "b"], "fail_at": 1, "how": "killed"}
    with ask(server, order) as client:
        assert client.head()[0] == 200
        assert client.chunk() == b"a"
        with pytest.raises(BrokenOff):
            client.chunk()
    server.wait_ready("parts")

    assert server.predict("parts", {"parts": ["a"], "last": "b"}).text == "ab"


def test_a_client_that_leaves_stops_the_work(server, tmp_path):
    """The call is left through its finally blocks and runs no further; the client counts as gone (F37)."""
    before = server.metric("modelserver_cancelled_total")
    file = tmp_path / "notes"
    with ask(server, {"endless": 10, "notes": str(file)}) as client:
        client.head()
        assert client.chunk() == b"x" * 10
        assert notes(file) == []

    assert wait_until(lambda: notes(file), "the handler leaves") == ["left"]
    assert server.metric("modelserver_cancelled_total") == before + 1
    assert server.predict("parts", {"parts": ["a"], "last": "b"}).text == "ab"


def test_a_handler_that_is_quicker_than_its_client(server):
    """It waits for the client, so that a long answer arrives whole and little of it is held in memory."""
    before = psutil.Process(server.pid).memory_info().rss
    with ask(server, {"large": 100}) as client:
        client.head()
        for step in range(100):
            assert client.chunk() == bytes([step]) * (1 << 20)
            assert psutil.Process(server.pid).memory_info().rss - before < 32 << 20
        assert client.chunks() == []


def test_the_example_streams(server):
    """examples/streaming answers word by word, the same for the same seed, and refuses what is no request."""
    folder = ROOT / "examples" / "streaming"
    store, words = server.settings["model_store"], str(folder / "text.txt")
    archived(store, "babble", folder / "babble_handler.py", extra_files=words)
    server.registered("babble.mar", batch_size=4, max_batch_delay=50)
    path = "/predictions/babble"
    orders = {"words": 5, "seed": 3}, {"words": 3, "first": "the"}
    with ask(server, orders[0], path) as one, ask(server, orders[1], path) as two:
        heads = [client.head() for client in (one, two)]
        first, second = one.chunks(), two.chunks()

    assert [headers["content-type"] for _, headers in heads] == ["text/plain; charset=utf-8"] * 2
    assert (len(first), len(second), first[-1]) == (6, 4, b"\n")
    assert second[0] == b"the "
    assert server.predict("babble", {"words": 5, "seed": 3}).content == b"".join(first)
    assert server.predict("babble", b"[1]", headers={"Content-Type": "application/json"}).status_code == 400


@pytest.mark.parametrize("number", [0, 1], ids=["handler", "generator"])
def test_handlers_of_the_guide_stream(server, number):
    """docs/streaming.md: the handlers of "Answers in parts" count down in parts."""
    name = f"countdown{number}"
    archived(server.settings["model_store"], name, examples_under("Answers in parts")[number])
    server.registered(f"{name}.mar")
    with ask(server, 3, f"/predictions/{name}") as client:
        client.head()

        assert client.chunks() == [b"3\n", b"2\n", b"1\n"]
