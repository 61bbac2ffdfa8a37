"""Traffic of a running server, recorded, sent again and compared, with the real commands."""

import contextlib
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.grpc_client import INFERENCE, channel, ending, grpc_server, oip, predict, stub
from tests.e2e.serving import PATIENCE, serving, wait_until

from modelserver.ext.recording import requests_of
from modelserver.ext.recording.file import read

pytestmark = pytest.mark.slow
JSON = {"content-type": "application/json", "authorization": "Bearer very-secret", "x-mark": "7"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """A server that may be recorded, with two front ends, ``rows`` in batches, ``parts`` and ``witness``."""
    settings = {"allow_recording": "true", "frontend_processes": 2}
    with serving(grpc_server(tmp_path_factory.mktemp("recorded"), model_store, **settings)) as made:
        made.registered("rows.mar", batch_size=4, batch_policy="window", max_batch_delay=20, synchronous=True)
        made.registered("parts.mar", synchronous=True)
        made.registered("mirror.mar", synchronous=True)
        made.registered("fields.mar", synchronous=True)
        made.registered("letters.mar", synchronous=True)
        made.registered("chatty.mar", synchronous=True)
        yield made


def at(server):
    return "--management", server.settings["management_address"]


def has_started(out):
    """Whether the file, which is empty at first, has the event of the server's start."""
    return out.exists() and out.stat().st_size > 0 and read(out).began


@contextlib.contextmanager
def recording(server, out, *flags):
    """``modelserver record`` of the server; ended by SIGINT."""
    process = subprocess.Popen(
        [sys.executable, "-m", "modelserver", "record", "--out", str(out), *at(server), *map(str, flags)],
        cwd=server.home.path,
        env=server.home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: has_started(out) or process.poll() is not None, "it records")
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.output = process.communicate(timeout=PATIENCE)[0]


def ask(server, value):
    return server.predict("rows", b"%d" % value, headers=JSON)


@pytest.fixture(scope="module")
def traffic(server, tmp_path_factory):
    """A recording of twelve predictions of ``rows``, a stream, a failure, V1, and OpenAI's API."""
    out = tmp_path_factory.mktemp("traffic") / "traffic.msr"
    with recording(server, out, "--headers", "x-mark") as process:
        with ThreadPoolExecutor(4) as pool:
            assert {answer.status_code for answer in pool.map(lambda n: ask(server, n), range(12))} == {200}
        assert server.predict("parts", {"parts": ["a", "b"], "last": "c"}).status_code == 200
        assert server.predict("rows", b'{"raise": "no"}', headers=JSON).status_code == 503
        v1 = {"instances": [1, 2, 3]}
        assert server.inference.post("/v1/models/rows:predict", json=v1).json()["predictions"] == [2, 4, 6]
        texts = {"model": "letters", "input": ["a", "bb"]}
        assert server.inference.post("/v1/embeddings", json=texts).status_code == 200
        chat = {"model": "chatty", "messages": [{"role": "user", "content": "count 3"}]}
        for body in (chat, {**chat, "stream": True}):
            assert server.inference.post("/v1/chat/completions", json=body).status_code == 200
        wait_until(lambda: len(read(out).calls) == 18, "all is in the file")
    assert process.returncode == 0, process.output
    assert "18 requests" in process.output
    return out


def test_what_is_recorded(traffic):
    """Requests with the chosen headers, none with credentials; answers, timing, batches and their order."""
    matches = read(traffic)
    rows = [call for call in matches.calls if call.target == "/predictions/rows"]
    (stream,) = (call for call in matches.calls if call.model == "parts")

    assert matches.ended == "interrupted"
    assert matches.fault == ""
    assert b"very-secret" not in b"".join(value for call in matches.calls for _, value in call.headers)
    assert {(name, value) for call in rows for name, value in call.headers if name == b"x-mark"} == {
        (b"x-mark", b"7")
    }
    assert sorted((int(call.body), call.answer) for call in rows[:12]) == [
        (n, b"%d" % (2 * n)) for n in range(12)
    ]
    assert all(
        call.batch and call.batch_size >= 1 and call.took > 0 and call.timing[1] > 0 for call in rows[:12]
    )
    assert len({call.number for call in rows}) == 13
    assert [call.status for call in rows if call.status != 200] == [503]
    assert stream.parts > 1
    whole, events = (call for call in matches.calls if call.model == "chatty")
    assert b'"content":"0 1 2 "' in whole.answer
    assert events.answer.endswith(b"data: [DONE]\n\n")
    assert [request.path for request in requests_of(traffic)] == [call.target for call in matches.calls]


@pytest.mark.parametrize("speed", ["1", "max"])
def test_a_replay_to_the_same_server_differs_in_nothing(server, traffic, speed, tmp_path):
    """All answers are the recorded ones, failures and streams too, and the page has the plot."""
    plot = tmp_path / "plot.html"
    url = f"http://127.0.0.1:{server.port}"
    done = server.home.run("replay", traffic, "--to", url, "--speed", speed, "--compare", "--plot", plot)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 18 answers differ." in done.stdout
    assert re.search(r"latency p99 ms +[\d.]+ +[\d.]+\n", done.stdout)
    assert "<svg" in plot.read_text()


def test_a_failure_of_one_batch_shows_again(server, tmp_path):
    """Two inputs that only together get wrong answers get right ones alone; wrong with ``--exact``."""
    out = tmp_path / "pair.msr"
    options = {"batch_size": 2, "batch_policy": "window", "max_batch_delay": 10_000}
    server.registered("neighbours.mar", synchronous=True, **options)
    with recording(server, out, "neighbours"):
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda n: server.predict("neighbours", b"%d" % n, headers=JSON), (7, -7)))
        wait_until(lambda: len(read(out).calls) == 2, "both are in the file")
    assert server.management.put("/models/neighbours?max_batch_delay=1").status_code == 200
    again = ("replay", out, "--compare")
    place = ("--to", f"http://127.0.0.1:{server.port}", "--speed", "max", "--connections", 1)
    alone = server.home.run(*again, *place)
    exact = server.home.run(*again, "--exact", "--model-store", server.settings["model_store"])

    assert [answer.text for answer in answers] == ["0", "0"]
    assert alone.returncode == 1
    assert "2 of 2 answers differ." in alone.stdout
    assert exact.returncode == 0, exact.stdout + exact.stderr
    assert "0 of 2 answers differ.\n1 of 1 batches are the recorded ones." in exact.stdout


@pytest.fixture(scope="module")
def calls(server, tmp_path_factory):
    """A recording of calls over gRPC: each method, with a failure, a stream of two requests, and an id."""
    out = tmp_path_factory.mktemp("calls") / "calls.msr"
    with recording(server, out, "--headers", "x-mark") as process, channel(server, "inference") as to:
        stubs, v2 = (stub(to, f"{INFERENCE}InferenceAPIsService"), stub(to, "inference.GRPCInferenceService"))
        metadata = (("x-mark", "7"), ("authorization", "Bearer very-secret"), ("x-trace-bin", b"\0\xff"))
        for number in range(4):
            sent_message = predict("mirror", data=b'{"n": %d}' % number)
            answer = stubs.Predictions(sent_message, timeout=PATIENCE, metadata=metadata)
            assert answer.prediction == sent_message.input["data"]
        assert len(list(stubs.StreamPredictions(predict("fields", parts=b"3"), timeout=PATIENCE))) == 4
        two = [predict("fields", parts=b"1"), predict("fields", b=b"", a=b"")]
        assert len(list(stubs.StreamPredictions2(iter(two), timeout=PATIENCE))) == 3
        assert ending(lambda: stubs.Predictions(predict("nobody"), timeout=PATIENCE))[0] == "INTERNAL"
        tensors = [infer(id="mine"), infer()]
        assert v2.ModelInfer(tensors[0], timeout=PATIENCE).id == "mine"
        assert len(list(v2.ModelStreamInfer(iter(tensors), timeout=PATIENCE))) == 2
        absent = infer(model_version="9")
        assert ending(lambda: v2.ModelInfer(absent, timeout=PATIENCE))[0] == "NOT_FOUND"
        broken = predict("fields", parts=b"1", fail=b"")
        assert ending(lambda: list(stubs.StreamPredictions(broken, timeout=PATIENCE)))[0] == "UNAVAILABLE"
        assert stubs.Ping(b"", timeout=PATIENCE).health
        wait_until(lambda: len(read(out).calls) == 13, "all is in the file")
    assert process.returncode == 0, process.output
    return out


def infer(**fields):
    """A request of the Open Inference Protocol, of two numbers for ``mirror``."""
    sent_message = oip(
        "ModelInferRequest", model_name="mirror", raw_input_contents=[b"\0\0\x80?" * 2], **fields
    )
    sent_message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    return sent_message


@pytest.mark.parametrize("speed", ["2", "max"])
def test_calls_are_sent_again(server, calls, speed):
    url = f"http://127.0.0.1:{server.settings['grpc_inference_port']}"
    done = server.home.run("replay", calls, "--to-grpc", url, "--speed", speed, "--compare")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 12 answers differ." in done.stdout
    assert re.search(r"requests +13 +13\nerrors +3 +3\n", done.stdout)


def test_what_is_not_sent_is_reported(server, calls, tmp_path):
    """Without an address for calls over gRPC, or only with that."""
    out = tmp_path / "both.msr"
    with recording(server, out), channel(server, "inference") as to:
        server.predict("mirror", b"x")
        stubs = stub(to, f"{INFERENCE}InferenceAPIsService")
        stubs.Predictions(predict("mirror", data=b"x"), timeout=PATIENCE)
        wait_until(lambda: len(read(out).calls) == 2, "both are in the file")
    rest = ("--to", f"http://127.0.0.1:{server.port}")
    by_grpc = ("--to-grpc", f"http://127.0.0.1:{server.settings['grpc_inference_port']}")
    one, other, both = (server.home.run("replay", out, *to) for to in (rest, by_grpc, (*rest, *by_grpc)))
    none = server.home.run("replay", calls, *rest)

    assert (one.returncode, other.returncode, both.returncode) == (0, 0, 0), one.stderr
    assert "Requests that are not sent without --to-grpc: 1." in one.stdout
    assert "Requests that are not sent without --to: 1." in other.stdout
    assert re.search(r"requests +2 +2\n", both.stdout)
    assert none.returncode == 2
    assert "Requests that are not sent without --to-grpc: 13." in none.stderr


def test_nothing_is_lost_at_the_end(server, tmp_path):
    """What was answered just before SIGTERM is in the file, and what was only asked as well."""
    out = tmp_path / "last.msr"
    with recording(server, out) as process, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.predict, "rows", b'{"wait": 1, "value": 7}', headers=JSON)
        server.wait_busy("rows")
        for value in range(3):
            assert server.predict("mirror", b"%d" % value).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        assert pending.result().json() == 7

    assert process.returncode == 0, process.output
    assert sorted(call.answer for call in read(out).calls) == [b"0", b"1", b"2", b"7"]
    assert read(out).ended == "interrupted"


def test_recording_is_off_unless_allowed(shared_server, tmp_path):
    """A server without the setting has no such route, and the command names the setting."""
    done = shared_server.home.run("record", "--out", tmp_path / "none.msr", *at(shared_server))

    assert done.returncode == 1
    assert "allow_recording=true" in done.stderr
