"""KServe's V1 API with its batcher built in (kserve reference 1, 2 and 4; design, section 9)."""

from __future__ import annotations

import time
import uuid

import pytest
from tests.e2e.serving import queue_ms


@pytest.fixture(scope="module", autouse=True)
def models(shared_server):
    """``plain`` does not batch; ``window`` and ``other`` gather for half a second, at most eight."""
    shared_server.registered("rows.mar", model_name="plain")
    for name in ("window", "other"):
        shared_server.registered("rows.mar", model_name=name, max_batch_size=8, max_latency=500, timeout=10)
    shared_server.registered("rows.mar", model_name="eager", batch_size=4, batch_policy="greedy")
    shared_server.registered("tell.mar", model_name="told", max_batch_size=8, max_latency=500)
    shared_server.registered("obey.mar", model_name="obedient", batch_size=4)
    shared_server.registered("echo.mar", model_name="unready", initial_workers=0)


def together(pool, *calls):
    """The answers to calls made at the same time."""
    return [future.result(20) for future in [pool.submit(call) for call in calls]]


def test_batched_body(shared_server):
    """A model that batches answers in the batcher's form: message, batchId, predictions, in that order."""
    answer = shared_server.v1("eager", [1, "two", None])
    body = answer.json()

    assert answer.headers["content-type"] == "application/json"
    assert list(body) == ["message", "batchId", "predictions"]
    assert body["message"] == ""
    assert uuid.UUID(body["batchId"]).version == 4
    assert body["batchId"] == answer.headers["x-batch-id"]
    assert body["predictions"] == [2, "two", None]


def test_plain_body(shared_server):
    """A model that does not batch answers predictions alone."""
    answer = shared_server.v1("plain", [1, 2])

    assert answer.json() == {"predictions": [2, 4]}
    assert answer.headers["x-batch-size"] == "1"


def test_shared_window(shared_server, pool):
    """Requests within one window share a batch, its id, and nothing else."""
    first, second = together(
        pool,
        lambda: shared_server.v1("window", [1, 2]),
        lambda: shared_server.v1("window", [10]),
    )

    assert first.json()["batchId"] == second.json()["batchId"]
    assert first.headers["x-batch-size"] == second.headers["x-batch-size"] == "3"
    assert (first.json()["predictions"], second.json()["predictions"]) == ([2, 4], [20])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_spaced_requests(shared_server, pool):
    """Two requests 20 ms apart share the window of the first (kserve reference 2.1)."""
    first = pool.submit(shared_server.v1, "window", [1])
    time.sleep(0.02)
    second = pool.submit(shared_server.v1, "window", [2])

    assert first.result(20).json()["batchId"] == second.result(20).json()["batchId"]


def test_joiners_extend_no_window(shared_server, pool):
    """A request after the window of the first has another batch, close as it is to the second."""
    answers = []
    for waiting in (1, 2):
        answers.append(pool.submit(shared_server.v1, "window", [1]))
        shared_server.wait_pending("window", waiting)
    shared_server.wait_pending("window", 0)
    answers.append(pool.submit(shared_server.v1, "window", [1]))
    opener, joiner, late = (answer.result(20).json()["batchId"] for answer in answers)

    assert opener == joiner != late


def test_split_request_that_fails(shared_server):
    """Where a call of a split request fails the request does, with that call's status and instance."""
    answer = shared_server.v1("eager", [1, 2, 3, 4, {"raise": "late"}])

    assert answer.status_code == 500
    assert answer.json()["error"].startswith("instances[4]: ")
    assert "late" in answer.json()["error"]


def test_other_routes_do_not_wait(shared_server, pool):
    """While a window is open, health, models and management answer at once."""
    waiting = pool.submit(shared_server.v1, "window", [1])
    shared_server.wait_pending("window", 1)

    assert shared_server.inference.get("/v2/health/ready").status_code in (200, 503)
    assert shared_server.inference.get("/v1/models/window").status_code == 200
    assert shared_server.management.get("/models").status_code == 200
    assert not waiting.done()
    assert waiting.result(20).status_code == 200


def test_windows_follow_each_other(shared_server):
    """Requests further apart than the window have batches of their own."""
    first = shared_server.v1("window", [1]).json()["batchId"]
    second = shared_server.v1("window", [1]).json()["batchId"]

    assert first != second


def test_full_batch_goes_at_once(shared_server):
    """A full batch does not wait for its window."""
    answer = shared_server.v1("window", list(range(8)))

    assert answer.headers["x-batch-size"] == "8"
    assert queue_ms(answer) < 250


def test_lone_request(shared_server):
    """A lone request waits its window out; with the greedy policy it goes at once (F26)."""
    assert queue_ms(shared_server.v1("window", [1])) > 490
    assert queue_ms(shared_server.v1("eager", [1])) < 250


def test_models_share_nothing(shared_server, pool):
    """Two models in the same window have batches of their own."""
    first, second = together(
        pool,
        lambda: shared_server.v1("window", [1]),
        lambda: shared_server.v1("other", [1]),
    )

    assert first.json()["batchId"] != second.json()["batchId"]
    assert first.headers["x-batch-size"] == second.headers["x-batch-size"] == "1"


def test_parameters_share_nothing(shared_server, pool):
    """Requests with other parameters have batches of their own, and handlers see the parameters (F22)."""

    def ask(**fields):
        return shared_server.v1("told", [{}], **fields)

    low, high, same = together(
        pool,
        lambda: ask(parameters={"t": 1}),
        lambda: ask(parameters={"t": 2}),
        lambda: ask(parameters={"t": 2}),
    )

    assert low.json()["batchId"] != high.json()["batchId"] == same.json()["batchId"]
    assert low.json()["predictions"][0]["parameters"] == {"parameters": {"t": 1}}
    assert high.json()["predictions"][0]["parameters"] == {"parameters": {"t": 2}}


def test_own_headers(shared_server, pool):
    """In a shared batch a handler sees each request's own headers and id."""

    def ask(mark):
        return shared_server.inference.post(
            "/v1/models/told:predict",
            json={"instances": [{}]},
            headers={"X-Mark": mark, "x-request-id": f"id-{mark}"},
        )

    answers = together(pool, lambda: ask("a"), lambda: ask("b"))

    assert answers[0].json()["batchId"] == answers[1].json()["batchId"]
    for mark, answer in zip("ab", answers, strict=True):
        told = answer.json()["predictions"][0]
        assert (told["headers"]["X-Mark"], told["id"]) == (mark, f"id-{mark}")


def test_oversized_request(shared_server):
    """A request above the maximum is split into batches and joined in order; none is over
    the maximum (F25).
    """
    counted = shared_server.metric("modelserver_batch_size_count", model_name="eager")
    split = shared_server.metric("modelserver_split_requests_total", model_name="eager")
    answer = shared_server.v1("eager", list(range(11)))

    assert answer.json()["predictions"] == [2 * n for n in range(11)]
    assert int(answer.headers["x-batch-size"]) <= 4
    assert shared_server.metric("modelserver_batch_size_count", model_name="eager") == counted + 3
    assert shared_server.metric("modelserver_split_requests_total", model_name="eager") == split + 1


def test_exactly_the_maximum_and_one_more(shared_server):
    """A request of exactly the maximum is one batch, one more makes two (F25)."""
    for size, batches in ((4, 1), (5, 2)):
        counted = shared_server.metric("modelserver_batch_size_count", model_name="eager")
        assert len(shared_server.v1("eager", [0] * size).json()["predictions"]) == size
        assert shared_server.metric("modelserver_batch_size_count", model_name="eager") == counted + batches


def test_numbers_stay_exact(shared_server):
    """Integers of any size and the order of keys pass unchanged."""
    body = b'{"instances": [9007199254740993, {"value": 12345678901234567890}, {"value": {"z": 1, "a": 2}}]}'
    answer = shared_server.inference.post("/v1/models/eager:predict", content=body)

    assert b'"predictions":[18014398509481986,12345678901234567890,{"z":1,"a":2}]' in answer.content


def test_inputs(shared_server):
    """``inputs`` is read like ``instances``, whose place it takes only when they are absent."""
    post = shared_server.inference.post

    assert post("/v1/models/eager:predict", json={"inputs": [1]}).json()["predictions"] == [2]
    both = post("/v1/models/eager:predict", json={"instances": [1], "inputs": [5, 6]})
    assert both.json()["predictions"] == [2]


def test_any_content_type(shared_server):
    """V1 bodies are JSON whatever their content type says."""
    for kind in ("application/json; charset=utf-8", "text/plain", "application/octet-stream"):
        answer = shared_server.inference.post(
            "/v1/models/eager:predict", content=b'{"instances": [1]}', headers={"content-type": kind}
        )

        assert answer.json()["predictions"] == [2]


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        (b"", "can't Unmarshal body"),
        (b"{", "can't Unmarshal body"),
        (b'{"instances": [1]} trailing', "can't Unmarshal body"),
        (b'{"instances": [NaN]}', "can't Unmarshal body"),
        (b"[1]", "can't Unmarshal body"),
        (b'{"instances": "text"}', "can't Unmarshal body"),
        (b'{"instances": {"a": [1]}}', "can't Unmarshal body"),
        (b'{"instances": [1', "can't Unmarshal body"),
        ('{"instances": [1]}'.encode("utf-16"), "can't Unmarshal body"),
        (b'{"instances": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "can't Unmarshal body"),
        (b"null", "can't Unmarshal body"),
        (b"{}", "no instances in the request"),
        (b'{"instances": null}', "no instances in the request"),
        (b'{"instances": []}', "no instances in the request"),
    ],
    ids=["empty", "cut", "trailing", "NaN", "array", "text", "object", "half", "utf-16", "deep", "null",
         "nothing", "null instances", "no instances"],
)  # fmt: skip
def test_malformed_bodies(shared_server, body, phrase):
    """Bodies that are no V1 request are refused with KServe's phrases, in JSON (F1, F2, F3, F10)."""
    answer = shared_server.inference.post("/v1/models/window:predict", content=body)
    told = answer.json()

    assert answer.status_code == 400
    assert list(told) == ["code", "type", "message", "error", "batchId", "predictions"]
    assert told["error"].startswith(phrase)
    # As clients of the batcher read them (kserve reference 2.2).
    assert (told["batchId"], told["predictions"]) == ("", None)


def test_instance_that_is_no_text(shared_server, pool):
    """An instance that is no UTF-8 is refused with 400, and what shares its batch is answered (F2)."""
    bad, good = together(
        pool,
        lambda: shared_server.inference.post("/v1/models/window:predict", content=b'{"instances": ["\xff"]}'),
        lambda: shared_server.v1("window", [1]),
    )

    assert (bad.status_code, good.json()["predictions"]) == (400, [2])
    assert "utf-8" in bad.json()["error"]


@pytest.mark.parametrize(
    ("order", "status", "message"),
    [
        ({"do": "raise", "text": "why"}, 500, "ValueError : why"),
        ({"do": "memory"}, 507, "Out of resources"),
        ({"do": "predict_error", "text": "mine", "code": 418}, 418, "mine"),
        ({"do": "short"}, 500, "size of prediction is not equal to the size of instances"),
        ({"do": "object"}, 500, "Unsupported model output data type."),
    ],
)
def test_handler_errors(shared_server, order, status, message):
    """A handler's fault has its true status and KServe's ``error`` key beside TorchServe's fields (F19)."""
    answer = shared_server.v1("obedient", [order])
    told = answer.json()

    assert answer.status_code == told["code"] == status
    assert told["error"] == told["message"]
    assert message in told["error"]
    assert (told["batchId"], told["predictions"]) == (answer.headers["x-batch-id"], None)
    assert shared_server.v1("obedient", [{"do": "nothing"}]).status_code == 200


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_guilty_request(shared_server, pool, position):
    """In a shared batch only the request whose instance raises fails, at any position (F18)."""
    bodies = [[1], [2], [3]]
    bodies[position] = [{"raise": "poison"}]
    answers = together(pool, *(lambda body=body: shared_server.v1("window", body) for body in bodies))

    assert [answer.status_code for answer in answers] == [500 if i == position else 200 for i in range(3)]
    assert "poison" in answers[position].json()["error"]
    assert all(answer.headers["x-batch-size"] == "3" for answer in answers)


def test_two_guilty_requests(shared_server, pool):
    """Two guilty ones among four leave the two others their answers; four guilty ones all fail (F20)."""
    poison = [{"raise": "poison"}]
    half = together(
        pool, *(lambda body=body: shared_server.v1("window", body) for body in ([1], poison, [3], poison))
    )
    whole = together(pool, *(lambda: shared_server.v1("window", poison) for _ in range(4)))

    assert [answer.status_code for answer in half] == [200, 500, 200, 500]
    assert [answer.status_code for answer in whole] == [500] * 4


def test_unknown_and_unready(shared_server):
    """Unknown models are 404 in KServe's words, models without workers 503."""
    unknown = shared_server.v1("none", [1])
    unready = shared_server.v1("unready", [1])

    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("Model with name none does not exist. There are: ")
    assert unready.status_code == 503
    assert "error" in unready.json()


def test_model_routes(shared_server):
    """The list of models and their readiness, on the inference port."""
    get = shared_server.inference.get

    assert get("/").json() == {"status": "alive"}
    assert get("/v1/models").json()["models"][:3] == ["plain", "window", "other"]
    assert get("/v1/models/plain").json() == {"name": "plain", "ready": True}
    assert get("/v1/models/unready").status_code == 503
    assert get("/v1/models/unready").json()["error"] == "Model with name unready is not ready."
    assert (
        get("/v1/models/none").json()["error"].startswith("Model with name none does not exist. There are: ")
    )
    assert get("/v1/nothing").json()["error"]


def test_explain(shared_server):
    """``:explain`` reaches the handler as such, in batches of its own."""
    answer = shared_server.inference.post("/v1/models/told:explain", json={"instances": [{}]})

    assert answer.json()["explanations"][0]["headers"]["explain"] == "True"


def test_predictions_share_the_queue(shared_server, pool):
    """/predictions counts as one instance of the same queue, and its body stays the plain prediction."""
    wrapped, plain = together(
        pool,
        lambda: shared_server.v1("told", [{}]),
        lambda: shared_server.predict("told", b"x"),
    )

    assert plain.headers["x-batch-id"] == wrapped.headers["x-batch-id"]
    assert "predictions" not in plain.json()


def test_identity_in_one_window(shared_server, pool):
    """Many requests of different sizes get back exactly their own instances, in their own order."""
    requests = [[f"{caller}-{n}" for n in range(caller % 5 + 1)] for caller in range(30)]
    started = time.monotonic()
    answers = together(pool, *(lambda body=body: shared_server.v1("window", body) for body in requests))

    assert [answer.json()["predictions"] for answer in answers] == requests
    assert max(int(answer.headers["x-batch-size"]) for answer in answers) <= 8
    assert time.monotonic() - started < 20


BODIES = (
    b"",
    b"null",
    b"not json",
    b"[]",
    b"{}",
    b'{"instances": []}',
    b'{"instances": 1}',
    b'{"inputs": null}',
)


def test_other_bodies_are_refused(start_server):
    """F10: what is no V1 or V2 body is 400 for every model; `split_instances=false`, and TorchServe's
    defaults, hand it to the handler.
    """
    own, theirs = (
        start_server(),
        start_server("--disable-token-auth", compat_defaults="torchserve", enable_model_api="true"),
    )
    own.registered("echo.mar").registered("echo.mar", model_name="whole", split_instances="false")
    theirs.registered("echo.mar")
    for body in BODIES:
        for path in ("/v1/models/{}:predict", "/v2/models/{}/infer"):
            refused = own.inference.post(path.format("echo"), content=body)
            assert (refused.status_code, set(refused.json()) >= {"error", "code", "message"}) == (400, True)
            for server, name in ((own, "whole"), (theirs, "echo")):
                assert server.inference.post(path.format(name), content=body).status_code != 400


def test_methods_of_predict(shared_server):
    """V1's actions are POST only; the answer says so in the words of both protocols, as for unknown paths."""
    shared_server.registered("echo.mar", model_name="methods")
    for path in ("/v1/models/methods:predict", "/v1/models/methods:explain", "/v2/models/methods/infer"):
        answer = shared_server.inference.get(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"] == answer.json()["message"]
    for port in (shared_server.inference, shared_server.management):
        for path in ("/v1/nothing", "/v2/nothing", "/nothing/at/all/here"):
            answer = port.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"] == answer.json()["message"]
