"""Explanations: routes, keys, and batches of several requests (reference 6.1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module")
def server(shared_server):
    """A server with a model that returns whether it explains, in batches of up to four."""
    return shared_server.registered("explains.mar", batch_size=4, max_batch_delay=1000)


def test_explanations_are_asked_for_by_route(server):
    body = {"instances": [1, 2, 3, 4]}
    explained = server.inference.post("/v1/models/explains:explain", json=body).json()
    predicted = server.inference.post("/v1/models/explains:predict", json=body).json()

    assert list(explained) == ["message", "batchId", "explanations"]
    assert explained["explanations"] == [
        {"asked": ["True"], "row": row, "at_once": 4} for row in (1, 2, 3, 4)
    ]
    assert predicted["predictions"][0]["asked"] == ["False"]

    answer = server.inference.post("/explanations/explains", json=5)

    assert answer.json()["asked"] == ["True"]


def test_explanations_and_predictions_share_no_batch(server):
    with ThreadPoolExecutor(8) as pool:
        request = [
            pool.submit(server.inference.post, f"/{verb}/explains", json=number)
            for number in range(4)
            for verb in ("explanations", "predictions")
        ]
    answers = [future.result().json() for future in request]

    assert [answer["asked"] for answer in answers] == [["True"], ["False"]] * 4
    assert [answer["row"] for answer in answers] == [number for number in range(4) for _ in range(2)]
    assert max(answer["at_once"] for answer in answers) > 1
