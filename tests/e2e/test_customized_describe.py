"""``GET /models/{m}?customized=true`` over real processes (reference 5.4)."""

from __future__ import annotations

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


def test_no_batch_is_waited_for(server):
    """A description goes alone and at once, however long the window of the batch policy is."""
    server.registered("selfie.mar", model_name="patient", batch_size=8, max_batch_delay=600_000)
    answers = [customized(server, "patient").json()[0]["customizedMetadata"]["saw"] for _ in range(3)]

    assert answers == [[{}]] * 3
    server.unregister("patient")
