"""Very many gRPC predictions, at once (F23) and one after another."""

import contextlib
import json
import re
from collections import Counter

import grpc
import pytest
from tests.e2e.grpc_client import INFERENCE, grpc_server, predict, stub
from tests.e2e.serving import serving, wait_until

pytestmark = pytest.mark.slow  # thousands of calls, and hundreds of megabytes

CALLS, CHANNELS = 3000, 4
FAILING = 10  # one of so many calls fails
METHOD = "InferenceAPIsService/Predictions HTTP/2.0"


def ask(inference, number):
    if number % FAILING:
        request = predict("echo", data=f"answer {number}".encode())
    else:
        order = {"do": "predict_error", "text": f"answer {number}", "code": 404}
        request = predict("obey", body=json.dumps(order).encode())
    return inference.Predictions.future(request, timeout=60, metadata=[("x-request-id", f"crowd-{number}")])


def reply(call):
    if call.code() is grpc.StatusCode.OK:
        return "OK", call.result().prediction.decode()
    return call.code().name, call.details().partition(" [request")[0]


def whole_log(server):
    """The access log, once it has all calls."""
    log = server.home.log("access_log.log")
    return log if log.count(METHOD) >= CALLS else ""


def test_thousands_of_calls_get_their_own_answers(tmp_path, model_store):
    """Each gets its own answer or error, counted and logged once; none is refused or cancelled."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    failing = CALLS // FAILING
    expected = {"echo": CALLS - failing, "obey": failing}
    with (
        serving(grpc_server(tmp_path, model_store, job_queue_size=CALLS)) as server,
        contextlib.ExitStack() as s,
    ):
        for name in expected:
            # Errors of a batch would be shared, for a batch is not halved without end.
            server.registered(f"{name}.mar", batch_size=32 if name == "echo" else 1)
        address = f"127.0.0.1:{server.settings['grpc_inference_port']}"
        stubs = [
            stub(s.enter_context(grpc.insecure_channel(address, options)), f"{INFERENCE}InferenceAPIsService")
            for _ in range(CHANNELS)
        ]
        before = {name: server.metric(name) for name in ("Requests5XX", "Requests4XX", "Requests2XX")}
        calls = [ask(stubs[number % CHANNELS], number) for number in range(CALLS)]
        ends = [reply(call) for call in calls]

        grown = {name: server.metric(name) - before[name] for name in reversed(before)}

        assert Counter(code for code, _ in ends) == {"OK": expected["echo"], "NOT_FOUND": failing}
        assert [number for number in range(CALLS) if ends[number][1] != f"answer {number}"] == []
        # Reading the metrics is itself an answer: one was given between the two readings of it.
        assert grown == {"Requests2XX": expected["echo"] + 1, "Requests4XX": failing, "Requests5XX": 0}
        for name, count in expected.items():
            assert server.metric("ts_inference_requests_total", model_name=name) == count
        for name in ("modelserver_cancelled_total", "modelserver_rejected_total"):
            assert server.metric(name) == 0
        log = wait_until(lambda: whole_log(server), "all are in the log")
        assert log.count(METHOD) == CALLS
        failed = re.findall(rf"{METHOD}\" 5 \d+ crowd-(\d+)$", log, re.MULTILINE)
        assert sorted(map(int, failed)) == list(range(0, CALLS, FAILING))
