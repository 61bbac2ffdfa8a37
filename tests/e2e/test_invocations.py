"""The model that ``/invocations`` selects (reference 6.1)."""

from __future__ import annotations

import gzip

import pytest


@pytest.fixture(scope="module")
def invoke(shared_server):
    """Posts to ``/invocations`` of a server with ``tell`` and ``echo``, neither loaded at start."""
    shared_server.registered("tell.mar").registered("echo.mar")

    def post(query="", **arguments):
        return shared_server.inference.post(f"/invocations{query}", **arguments)

    return post


@pytest.mark.parametrize(
    "body",
    [{"data": {"model_name": "tell", "q": "1"}}, {"files": {"q": (None, "1"), "model_name": (None, "tell")}}],
    ids=["urlencoded", "multipart"],
)
def test_model_name_in_a_form(invoke, body):
    """A form's field names the model, and reaches the handler like the other fields."""
    assert invoke(**body).json()["values"] == {"model_name": "tell", "q": "1"}


def test_model_name_in_a_compressed_form(invoke):
    headers = {"content-type": "application/x-www-form-urlencoded", "content-encoding": "gzip"}
    answer = invoke(content=gzip.compress(b"model_name=tell"), headers=headers)

    assert answer.json()["values"] == {"model_name": "tell"}


@pytest.mark.parametrize(
    "body",
    [{"json": {"model_name": "tell"}}, {"data": {"model_name": ""}}, {"content": b"model_name=tell"}],
    ids=["JSON", "empty", "no content type"],
)
def test_no_model_name(invoke, body):
    """Only a form's field counts; without one the request is refused (F8)."""
    answer = invoke(**body)

    assert answer.status_code == 400
    assert answer.json()["message"] == "Parameter model_name is required."
