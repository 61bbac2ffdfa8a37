"""KServe's V1 API with its batcher built in (kserve reference 1, 2 and 4; design, section 9)."""

import uuid

import pytest


@pytest.fixture(scope="module", autouse=True)
def models(shared_server):
    """``plain`` does not batch; ``four`` and ``told`` wait until four or two instances fill their batch."""
    shared_server.registered("rows.mar", model_name="plain")
    shared_server.registered("rows.mar", model_name="four", max_batch_size=4, max_latency=30_000)
    shared_server.registered("rows.mar", model_name="eager", batch_size=4, batch_policy="greedy")
    shared_server.registered("tell.mar", model_name="told", max_batch_size=2, max_latency=30_000)
    shared_server.registered("obey.mar", model_name="obedient", batch_size=4)
    shared_server.registered("echo.mar", model_name="unready", initial_workers=0)


def together(pool, *calls):
    return [future.result(20) for future in [pool.submit(call) for call in calls]]


def test_answers_have_the_form_of_the_batcher(shared_server):
    """message, batchId, predictions, in that order; of a model that does not batch predictions alone."""
    answer = shared_server.v1("eager", [1, "two", None])
    body = answer.json()

    assert answer.headers["content-type"] == "application/json"
    assert list(body) == ["message", "batchId", "predictions"]
    assert body["message"] == ""
    assert uuid.UUID(body["batchId"]).version == 4
    assert body["batchId"] == answer.headers["x-batch-id"]
    assert body["predictions"] == [2, "two", None]

    answer = shared_server.v1("plain", [1, 2])

    assert answer.json() == {"predictions": [2, 4]}
    assert answer.headers["x-batch-size"] == "1"

    for kind in ("application/json; charset=utf-8", "text/plain", "application/octet-stream"):
        answer = shared_server.inference.post(
            "/v1/models/eager:predict", content=b'{"instances": [1]}', headers={"content-type": kind}
        )

        assert answer.json()["predictions"] == [2]


def test_requests_share_a_batch_and_nothing_else(shared_server, pool):
    first, second = together(
        pool, lambda: shared_server.v1("four", [1, 2]), lambda: shared_server.v1("four", [10, 11])
    )

    assert first.json()["batchId"] == second.json()["batchId"]
    assert first.headers["x-batch-size"] == second.headers["x-batch-size"] == "4"
    assert (first.json()["predictions"], second.json()["predictions"]) == ([2, 4], [20, 22])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_parameters_keep_requests_apart(shared_server, pool):
    """Requests with other parameters have batches of their own, and handlers see the parameters (F22)."""

    def send(number, *instances):
        return lambda: shared_server.v1("told", instances, parameters={"t": number})

    low, high, same = together(pool, send(1, {}, {}), send(2, {}), send(2, {}))

    assert low.json()["batchId"] != high.json()["batchId"] == same.json()["batchId"]
    assert low.json()["predictions"][0]["parameters"] == {"parameters": {"t": 1}}
    assert high.json()["predictions"][0]["parameters"] == {"parameters": {"t": 2}}


def test_request_above_maximum_is_split(shared_server):
    """Into batches, joined in order; one of exactly the maximum is one batch (F25)."""
    counted = shared_server.metric("modelserver_batch_size_count", model_name="eager")
    split = shared_server.metric("modelserver_split_requests_total", model_name="eager")
    assert len(shared_server.v1("eager", [0] * 4).json()["predictions"]) == 4
    answer = shared_server.v1("eager", list(range(11)))

    assert answer.json()["predictions"] == [2 * n for n in range(11)]
    assert int(answer.headers["x-batch-size"]) <= 4
    assert shared_server.metric("modelserver_batch_size_count", model_name="eager") == counted + 4
    assert shared_server.metric("modelserver_split_requests_total", model_name="eager") == split + 1


def test_other_bodies_reach_models_that_take_them_whole(shared_server):
    """What is no V1 or V2 body is 400, unless `split_instances=false` hands it to the handler (F10)."""
    shared_server.registered("echo.mar", model_name="rowwise")
    shared_server.registered("echo.mar", model_name="whole", split_instances="false")
    for body in (b"", b"null", b"not json", b"[]", b"{}", b'{"instances": 1}', b'{"inputs": null}'):
        for path in ("/v1/models/{}:predict", "/v2/models/{}/infer"):
            refused = shared_server.inference.post(path.format("rowwise"), content=body)
            assert (refused.status_code, set(refused.json()) >= {"error", "code", "message"}) == (400, True)
            assert shared_server.inference.post(path.format("whole"), content=body).status_code != 400


def test_instance_that_is_no_text_gets_400(shared_server, pool):
    """An instance that is no UTF-8 is refused with 400, and what shares its batch is answered (F2)."""
    bad, good = together(
        pool,
        lambda: shared_server.inference.post("/v1/models/four:predict", content=b'{"instances": ["\xff"]}'),
        lambda: shared_server.v1("four", [1, 2, 3]),
    )

    assert (bad.status_code, good.json()["predictions"]) == (400, [2, 4, 6])
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
def test_handler_error_has_its_status(shared_server, order, status, message):
    """A handler's fault has its true status and KServe's ``error`` key beside TorchServe's fields (F19)."""
    answer = shared_server.v1("obedient", [order])
    description = answer.json()

    assert answer.status_code == description["code"] == status
    assert description["error"] == description["message"]
    assert message in description["error"]
    assert (description["batchId"], description["predictions"]) == (answer.headers["x-batch-id"], None)
    assert shared_server.v1("obedient", [{"do": "nothing"}]).status_code == 200


def test_routes_show_models(shared_server):
    """On the inference port, with readiness; unknown models: 404 in KServe's words, without workers: 503."""
    get = shared_server.inference.get

    assert get("/").json() == {"status": "alive"}
    assert get("/v1/models").json()["models"][:3] == ["plain", "four", "eager"]
    described = get("/v1/models/plain").json()
    assert (described["name"], described["ready"]) == ("plain", True)
    assert get("/v1/models/unready").status_code == shared_server.v1("unready", [1]).status_code == 503
    assert get("/v1/models/unready").json()["error"] == "Model with name unready is not ready."
    for answer in (get("/v1/models/none"), shared_server.v1("none", [1])):
        assert answer.status_code == 404
        assert answer.json()["error"].startswith("Model with name none does not exist. There are: ")
    assert get("/v1/nothing").json()["error"]
