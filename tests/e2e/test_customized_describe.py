"""``GET /models/{m}?customized=true`` over real processes (reference 5.4)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module")
def server(shared_server):
    """A server with a handler that describes itself, and one that does not know of it."""
    shared_server.registered("selfie.mar")
    return shared_server.registered("echo.mar")


def customized(server, path="selfie", **parameters):
    return server.management.get(f"/models/{path}", params={"customized": "true", **parameters})


def test_the_handler_describes_itself(server):
    """It gets an empty row; its object is in the description, its status and headers are the answer's."""
    answer = customized(server)

    described = answer.json()[0]
    assert described["modelName"] == "selfie"
    assert described["customizedMetadata"] == {"saw": [{}], "explain": "None"}
    assert answer.status_code == 201
    assert answer.headers["x-mine"].split() == ["yes", "x-other:", "no"]
    assert "x-other" not in answer.headers


def test_versions(server):
    """One version may be asked; for ``all`` nobody is."""
    assert "customizedMetadata" in customized(server, "selfie/1.0").json()[0]
    everything = customized(server, "selfie/all")
    assert everything.status_code == 200
    assert "customizedMetadata" not in everything.json()[0]
    assert customized(server, "selfie/2.0").status_code == 404


@pytest.mark.parametrize("value", ["false", "", "1", "yes"])
def test_only_true_asks(server, value):
    """Any other value leaves the description as it is."""
    assert "customizedMetadata" not in customized(server, customized=value).json()[0]


def test_handlers_that_do_not_know_of_it(server):
    """What they make of an empty row is no object or an error; the server says which, and goes on."""
    answer = customized(server, "echo")

    assert answer.status_code in (200, 503)
    assert server.predict("echo", b"x").status_code == 200


def test_no_batch_is_waited_for(server):
    """A description goes alone and at once, however long the window of the batch policy is."""
    server.registered("selfie.mar", model_name="patient", batch_size=8, max_batch_delay=20_000)
    started = time.monotonic()

    answers = [customized(server, "patient").json()[0]["customizedMetadata"]["saw"] for _ in range(3)]

    assert answers == [[{}]] * 3
    assert time.monotonic() - started < 20
    server.unregister("patient")


def test_no_worker(server):
    """Without workers it is TorchServe's 503."""
    server.management.post("/models", params={"url": "selfie.mar", "model_name": "idle"})
    answer = customized(server, "idle")

    assert answer.status_code == 503
    assert answer.json()["message"] == (
        'Model "idle" has no worker to serve describe request. Please use scale workers API to add workers.'
    )
    server.unregister("idle")


def test_no_reply_in_time(server):
    """A worker that is busy for longer than the response timeout leaves the question unanswered: a 500."""
    server.registered("selfie.mar", model_name="slow", response_timeout=1)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(server.v1, "slow", [{"sleep": 30}])
        while not server.metric("ts_inference_requests_total", model_name="slow"):
            time.sleep(0.02)
        answer = customized(server, "slow")

    assert (answer.status_code, answer.json()["message"]) == (500, "Failed to get customized model matadata.")
    assert busy.result().status_code == 504
    server.unregister("slow")
