"""Which model ``/invocations`` asks for (reference 6.1)."""

from __future__ import annotations

import gzip
import json

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
    """The field is found in the body as it is once inflated."""
    headers = {"content-type": "application/x-www-form-urlencoded", "content-encoding": "gzip"}
    answer = invoke(content=gzip.compress(b"model_name=tell"), headers=headers)

    assert answer.json()["values"] == {"model_name": "tell"}


def test_query_before_form(invoke):
    """The query's name wins; the handler sees the form's value, which comes last."""
    answer = invoke("?model_name=tell", data={"model_name": "echo"})

    assert answer.json()["values"] == {"model_name": "echo"}


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"model_name": "tell"}},
        {"data": {"model_name": ""}},
        {"data": {"other": "tell"}},
        {"content": b"model_name=tell"},
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
    ],
    ids=["JSON", "empty", "another field", "no content type", "no boundary"],
)
def test_no_model_name(invoke, body):
    """Only a form's field counts; without one the request is refused (F8)."""
    answer = invoke(**body)

    assert answer.status_code == 400
    assert answer.json()["message"] == "Parameter model_name is required."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ([1, {"x": None}], "list"), ([], "list"), (5, "int"), (-0.5, "float"), ("a text", "str"), ("", "str"),
        (True, "bool"), (None, "NoneType"),
    ],
)  # fmt: skip
def test_json_that_is_no_object(invoke, body, kind):
    """Where the query names the model, a JSON body of any kind reaches the handler decoded, as its body."""
    sent = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
    answer = invoke("?model_name=tell", **sent)

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["types"] == {"model_name": "bytearray", "body": kind}
    assert answer.json()["values"] == {"model_name": "tell", "body": body}
    assert invoke(**sent).status_code == 400


def test_unknown_model_in_a_form(invoke):
    """The name is looked up like any other."""
    answer = invoke(data={"model_name": "nobody"})

    message = answer.json()["message"]
    assert (answer.status_code, message.partition(". There ")[0]) == (404, "Model not found: nobody")


def test_damaged_form(invoke):
    """A form that names its model and then breaks off is refused with the reason (F7)."""
    body = b'--b\r\nContent-Disposition: form-data; name="model_name"\r\n\r\ntell\r\n--b\r\nContent'
    answer = invoke(content=body, headers={"content-type": "multipart/form-data; boundary=b"})

    assert answer.status_code == 400
    assert "multipart" in answer.json()["message"]
