"""Predictions through a real server: how bodies reach handlers, how answers and errors come back (reference
6 and 7). What TorchServe does likewise is compared with it, answer by answer, in tests/differential.
"""

import gzip
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module", autouse=True)
def models(shared_server):
    for url in ("echo.mar", "tell.mar"):
        shared_server.registered(url)
    shared_server.registered("echo-v2.mar")


def error(answer):
    """Status, type and message; the body has the status too, and the request's id from a worker."""
    body = answer.json()
    assert body.pop("request_id", answer.headers["x-request-id"]) == answer.headers["x-request-id"]
    # A request without a route may be one of V1 or V2, whose clients read this field.
    assert body.pop("error", body["message"]) == body["message"]
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    return answer.status_code, body["type"], body["message"]


def test_bodies_and_answers_keep_their_type(shared_server):
    """A raw body is a bytearray under "body". Each answer has a type, and browsers look for no other."""
    answer = shared_server.predict("echo", b"\x00\xffhello")

    assert (answer.status_code, answer.content) == (200, b"\x00\xffhello")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert shared_server.predict("tell", b"x").json()["types"] == {"body": "bytearray"}

    text = shared_server.predict("echo", b"<script>", headers={"content-type": "text/plain"})
    answers = [
        *(port.get("/nothing") for port in (shared_server.inference, shared_server.management)),
        shared_server.management.get("/models"),
        shared_server.metrics.get("/metrics"),
        shared_server.metrics.get("/nothing"),
        shared_server.inference.get("/ping"),
    ]

    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert all("content-type" in answer.headers for answer in answers)
    assert {answer.headers["x-content-type-options"] for answer in (*answers, text)} == {"nosniff"}


def test_unknown_model_or_version_gets_404_with_what_there_is(shared_server):
    """The message names it, and then the models or versions that exist (reference 6.5)."""
    for path, what, message in (
        ("none", "Model", "Model not found: none. There are: echo, "),
        ("%00", "Model", "Model not found: \x00. There are: "),
        (
            "echo/9.9",
            "ModelVersion",
            "Model version: 9.9 does not exist for model: echo. There are: 1.0, 2.0",
        ),
    ):
        status, kind, text = error(shared_server.predict(path))
        assert (status, kind) == (404, f"{what}NotFoundException")
        assert text.startswith(message)


def test_answer_names_request_batch_and_times(shared_server):
    """With a request id, the client's own if it has one; it forbids caching."""
    answer = shared_server.predict("echo", b"x")
    headers = answer.headers

    assert uuid.UUID(headers["x-request-id"]).version == 4
    assert uuid.UUID(headers["x-batch-id"]).version == 4
    assert headers["x-batch-size"] == "1"
    assert headers["server-timing"].startswith("queue;dur=")
    assert "inference;dur=" in headers["server-timing"]
    assert headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert headers["pragma"] == "no-cache"
    assert headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert headers["connection"] == "keep-alive"
    own = shared_server.predict("tell", b"", headers={"x-request-id": "mine-1"})
    assert own.headers["x-request-id"] == own.json()["id"] == "mine-1"


def test_descriptions_are_served(shared_server):
    """OPTIONS, /api-description and /openapi.json give the description, /docs a page that loads nothing."""
    described = shared_server.inference.request("OPTIONS", "/").json()

    assert described["openapi"].startswith("3.")
    assert shared_server.inference.get("/openapi.json").json() == described
    assert shared_server.inference.post("/api-description").json() == described
    assert shared_server.inference.request("OPTIONS", "/predictions/echo").json()["info"]["title"]
    assert shared_server.inference.request("OPTIONS", "/predictions/none").status_code == 404
    page = shared_server.inference.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.replace("http://127", "").replace("http://localhost", "").replace(
        "http://www.w3.org", ""
    )


# Explanations: routes, keys, and batches (reference 6.1)


@pytest.fixture(scope="module")
def explaining(shared_server):
    """A server with a model that returns whether it explains, in batches of up to four."""
    return shared_server.registered("explains.mar", batch_size=4, max_batch_delay=1000)


def test_the_route_selects_explanations(explaining):
    body = {"instances": [1, 2, 3, 4]}
    explained = explaining.inference.post("/v1/models/explains:explain", json=body).json()
    predicted = explaining.inference.post("/v1/models/explains:predict", json=body).json()

    assert list(explained) == ["message", "batchId", "explanations"]
    assert explained["explanations"] == [
        {"asked": ["True"], "row": row, "at_once": 4} for row in (1, 2, 3, 4)
    ]
    assert predicted["predictions"][0]["asked"] == ["False"]

    answer = explaining.inference.post("/explanations/explains", json=5)

    assert answer.json()["asked"] == ["True"]


def test_explanations_and_predictions_share_no_batch(explaining):
    with ThreadPoolExecutor(8) as pool:
        request = [
            pool.submit(explaining.inference.post, f"/{verb}/explains", json=number)
            for number in range(4)
            for verb in ("explanations", "predictions")
        ]
    answers = [future.result().json() for future in request]

    assert [answer["asked"] for answer in answers] == [["True"], ["False"]] * 4
    assert [answer["row"] for answer in answers] == [number for number in range(4) for _ in range(2)]
    assert max(answer["at_once"] for answer in answers) > 1


# The model that ``/invocations`` selects (reference 6.1)


@pytest.fixture(scope="module")
def invoke(shared_server):
    """Posts to ``/invocations`` of a server with several models, none loaded at start."""

    def post(query="", **arguments):
        return shared_server.inference.post(f"/invocations{query}", **arguments)

    return post


@pytest.mark.parametrize(
    "body",
    [{"data": {"model_name": "tell", "q": "1"}}, {"files": {"q": (None, "1"), "model_name": (None, "tell")}}],
    ids=["urlencoded", "multipart"],
)
def test_a_form_can_have_the_model_name(invoke, body):
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
def test_a_missing_model_name_is_refused(invoke, body):
    """Only a form's field counts; without one the request is refused (F8)."""
    answer = invoke(**body)

    assert answer.status_code == 400
    assert answer.json()["message"] == "Parameter model_name is required."
