"""Predictions through a real server: how bodies reach handlers, how answers and errors
come back (reference 6 and 7).
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import uuid

import pytest
from tests.e2e.raw import CLOSE, converse

NO_WORKER = (
    'Model "{}" has no worker to serve inference request. Please use scale workers API to add workers. '
    "If this is a sequence inference, please check if it is closed, or expired; "
    "or exceeds maxSequenceJobQueueSize"
)


@pytest.fixture(scope="module", autouse=True)
def models(shared_server):
    """What the tests here predict with."""
    for url in ("echo.mar", "tell.mar", "obey.mar"):
        shared_server.registered(url)
    shared_server.registered("echo-v2.mar")
    shared_server.registered("echo.mar", model_name="unstaffed", initial_workers=0)


def error(answer):
    """Status, type and message; the body says the status too, the request's id where a worker answered, and
    nothing else.
    """
    body = answer.json()
    assert body.pop("request_id", answer.headers["x-request-id"]) == answer.headers["x-request-id"]
    # What has no route may have been meant for V1 or V2, whose clients read this.
    assert body.pop("error", body["message"]) == body["message"]
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["connection"] == "close"
    return answer.status_code, body["type"], body["message"]


def test_raw_bytes(shared_server):
    """A raw body reaches the handler as a bytearray under "body" and comes back untouched."""
    answer = shared_server.predict("echo", b"\x00\xffhello")

    assert (answer.status_code, answer.content) == (200, b"\x00\xffhello")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert shared_server.predict("tell", b"x").json()["types"] == {"body": "bytearray"}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_every_method_predicts(shared_server, method):
    """The method of a prediction is not checked (reference 6.1)."""
    answer = shared_server.inference.request(method, "/predictions/echo", content=b"same")

    assert (answer.status_code, answer.content) == (200, b"same")


def test_no_answer_is_for_browsers_to_guess(shared_server):
    """On every port each answer has a type, and browsers must not look for another."""
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


def test_torchserves_defaults_give_no_type(start_server):
    """With them bytes and text have none, as in TorchServe (reference 6.4)."""
    server = start_server(
        compat_defaults="torchserve", disable_token_authorization="true", enable_model_api="true"
    )
    server.registered("echo.mar")
    answer = server.predict("echo", b"x")

    assert "content-type" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["TRACE", "PROPFIND", "QUERY"])
@pytest.mark.parametrize("path", ["/predictions/echo", "/explanations/echo", "/invocations", "/echo/predict"])
def test_odd_methods_do_not(shared_server, method, path):
    """What the OpenAPI document does not name is refused with what it names."""
    answer = shared_server.inference.request(method, path)
    document = shared_server.inference.get("/openapi.json").json()["paths"]
    described = document[path.replace("echo", "{model_name}")]

    assert answer.status_code == 405
    assert answer.headers["allow"] == ", ".join(sorted(name.upper() for name in described))


def test_head(shared_server):
    """HEAD runs the prediction and gets its headers without its body (F16)."""
    answer = shared_server.inference.head("/predictions/echo")

    assert (answer.status_code, answer.content) == (200, b"")
    assert "x-batch-id" in answer.headers
    assert shared_server.inference.head("/ping").status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize(
    ("arguments", "types"),
    [
        (["-T", "body.bin"], {"body": "bytearray"}),
        (["-F", "data=@body.bin"], {"data": "bytearray"}),
        (["-F", "data=@body.json;type=application/json", "-F", "note=text", "-F", "page=@body.txt"],
         {"data": "dict", "note": "bytearray", "page": "str"}),
        (["-H", "Content-Type: application/json", "-d", '{"a": 1}'], {"body": "dict"}),
        (["-d", "a=1&b=two"], {"a": "bytearray", "b": "bytearray"}),
        (["-d", '{"a":1}'], {'{"a":1}': "bytearray"}),
        (["-X", "POST"], {"body": "bytearray"}),
    ],
    ids=["put a file", "one part", "three parts", "json", "urlencoded", "json without saying so", "nothing"],
)  # fmt: skip
def test_curl(shared_server, tmp_path, arguments, types):
    """What curl sends in its usual forms arrives as TorchServe's table says (reference 7.1 and 7.2)."""
    (tmp_path / "body.bin").write_bytes(b"\xff\x00")
    (tmp_path / "body.json").write_text('{"deep": [1]}')
    (tmp_path / "body.txt").write_text("plain")
    url = f"http://127.0.0.1:{shared_server.port}/predictions/tell"
    done = subprocess.run(
        ["curl", "-s", "-m", "10", *arguments, url], cwd=tmp_path, capture_output=True, check=True
    )

    assert json.loads(done.stdout)["types"] == types


@pytest.mark.parametrize(
    ("content_type", "body", "kind", "value"),
    [
        ("application/json", b'{"a": [1, 2.5, null]}', "dict", {"a": [1, 2.5, None]}),
        ("application/json; charset=utf-8", b"[1]", "list", [1]),
        ("application/json", b'"text"', "str", "text"),
        ("application/json", b"{broken", "bytearray", "{broken"),
        ("Application/JSON", b"[1]", "bytearray", "[1]"),
        ("text/plain", "grün".encode(), "str", "grün"),
        ("text/plain", b"\xff", "bytearray", "\xff"),
        ("application/octet-stream", b"[1]", "bytearray", "[1]"),
    ],
)
def test_content_types(shared_server, content_type, body, kind, value):
    """Only exactly application/json and text are decoded; what cannot be stays bytes (reference 7.2)."""
    told = shared_server.predict("tell", body, headers={"content-type": content_type}).json()

    assert told["types"] == {"body": kind}
    assert told["values"] == {"body": value}


def test_repeated_part(shared_server):
    """Of two parts with one name the handler gets the last (F8)."""
    told = shared_server.inference.post(
        "/predictions/tell", files=[("data", b"first"), ("data", b"second")]
    ).json()

    assert told["values"] == {"data": "second"}


def test_broken_form(shared_server):
    """A multipart body without its end is refused with 400 (F7)."""
    answer = shared_server.predict(
        "echo", b"--b\r\n\r\nhalf", headers={"content-type": "multipart/form-data; boundary=b"}
    )

    status, kind, _ = error(answer)
    assert (status, kind) == (400, "BadRequestException")


def test_request_headers(shared_server):
    """A handler sees the client's headers in the client's case, and the server's two that
    nobody can forge.
    """
    headers = shared_server.predict("tell", b"", headers={"X-MiXed": "1", "explain": "forged"}).json()[
        "headers"
    ]

    assert headers["X-MiXed"] == "1"
    assert headers["explain"] == "False"
    assert headers["url_path"] == ""


def test_explanations(shared_server):
    """The explanations route sets the header ``explain``."""
    told = shared_server.inference.post("/explanations/tell", content=b"x").json()

    assert told["headers"]["explain"] == "True"


def test_url_path(shared_server):
    """What follows the version in the path reaches the handler as ``url_path``."""
    told = shared_server.inference.post("/predictions/tell/1.0/v1/chat/completions").json()

    assert told["headers"]["url_path"] == "v1/chat/completions"


def test_versions(shared_server):
    """A version in the path picks that one; without it the default answers."""
    post = shared_server.inference.post

    assert post("/predictions/echo", content=b"x").content == b"x"
    assert post("/predictions/echo/1.0", content=b"x").content == b"x"
    assert post("/predictions/echo/2.0", content=b"x").json()["types"] == {"body": "bytearray"}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/predictions/tell?q=1", {"body": "b"}),
        ("/invocations?model_name=tell&q=1", {"model_name": "tell", "q": "1", "body": "b"}),
        ("/models/tell/invoke?q=1&q=2", {"q": "2", "body": "b"}),
        ("/tell/predict?q=&r=%20x", {"q": "", "r": " x", "body": "b"}),
        ("/tell/1.0/predict?q=1", {"q": "1", "body": "b"}),
    ],
)
def test_query(shared_server, path, values):
    """Query parameters reach the handler on TorchServe's older routes only (reference 6.1)."""
    assert shared_server.inference.post(path, content=b"b").json()["values"] == values


def test_invocations_needs_a_model(shared_server):
    """Without a model name, and without the one startup model, /invocations is refused."""
    answer = shared_server.inference.post("/invocations")

    assert error(answer) == (400, "BadRequestException", "Parameter model_name is required.")


def test_paths(shared_server):
    """Trailing slashes do not count, escapes are decoded, case counts (reference 4.1)."""
    post = shared_server.inference.post

    assert post("/predictions/echo/", content=b"x").content == b"x"
    assert post("/predictions/%65cho", content=b"x").content == b"x"
    assert post("/Predictions/echo").status_code == 404


def test_answer_headers(shared_server):
    """Each answer has a request id, forbids caching, and says its batch and its times."""
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


def test_request_id(shared_server):
    """A client's own request id is used, in the answer and in the handler."""
    answer = shared_server.predict("tell", b"", headers={"x-request-id": "mine-1"})

    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "mine-1"


def test_handler_sets_status_and_headers(shared_server):
    """Status, phrase and headers that the handler sets are the answer's; framing headers
    are not its business.
    """
    order = {
        "do": "status", "code": 207, "phrase": "Partly so",
        "headers": {"X-Own": "yes", "content-type": "text/x-own", "content-length": "999", "connection": "x"},
    }  # fmt: skip
    answer = shared_server.predict("obey", order)

    assert (answer.status_code, answer.reason_phrase, answer.text) == (207, "Partly so", "done")
    assert answer.headers["x-own"] == "yes"
    assert answer.headers["content-type"] == "text/x-own"
    assert answer.headers["content-length"] == "4"


def test_header_injection(shared_server):
    """A line break in a handler's header begins no other header (F13)."""
    answer = shared_server.predict(
        "obey",
        {"do": "status", "code": 200, "phrase": "a\r\nX-Bad: 1", "headers": {"X-Own": "b\r\nX-Worse: 1"}},
    )

    assert answer.status_code == 200
    assert not {"x-bad", "x-worse"} & set(answer.headers)


def test_header_injection_by_content_type(shared_server):
    """Nor does one in a content type."""
    order = {"do": "status", "code": 200, "phrase": "", "headers": {"Content-Type": "text/plain\r\nX-Bad: 1"}}
    answer = shared_server.predict("obey", order)

    assert answer.status_code == 200
    assert "x-bad" not in answer.headers


@pytest.mark.parametrize(("given", "sent"), [(204, 204), (304, 304), (100, 500), (199, 500)])
def test_statuses_that_have_no_body(shared_server, given, sent):
    """A status without a body gets none, one that ends no request becomes 500, the next answer is intact."""
    answer = shared_server.predict("obey", {"do": "status", "code": given})
    following = shared_server.predict("obey", {"do": "nothing"})

    assert answer.status_code == sent
    assert sent == 500 or answer.content == b""
    assert following.json()["size"] == 1


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"b": 1, "a": [1.5, None]}, b'{\n  "b": 1,\n  "a": [\n    1.5,\n    null\n  ]\n}'),
        ("text", b"text"),
        (5, b"5"),
        (None, b"null"),
        ({"ü": "ß"}, b'{\n  "\\u00fc": "\\u00df"\n}'),
    ],
)
def test_answer_bodies(shared_server, value, body):
    """Bodies are written as TorchServe's ``json.dumps(indent=2)``; text goes out as it is (reference 7.4)."""
    assert shared_server.predict("obey", {"do": "return", "value": value}).content == body


@pytest.mark.parametrize(
    ("order", "status", "message"),
    [
        ({"do": "raise"}, 503, "Prediction failed"),
        ({"do": "memory"}, 507, "Out of resources"),
        ({"do": "cuda"}, 507, "Out of resources"),
        ({"do": "predict_error", "text": "mine", "code": 599}, 599, "mine"),
        ({"do": "predict_error", "text": "large", "code": 413}, 507, "large"),
        ({"do": "tuple"}, 503, "Invalid model predict output"),
        ({"do": "short"}, 503, "number of batch response mismatched"),
        ({"do": "object"}, 503, "Unsupported model output data type."),
    ],
)
def test_handler_errors(shared_server, order, status, message):
    """What a handler does wrong is answered as reference 6.5 lists it, and the next
    request works (F19, F43).
    """
    *kind, said = error(shared_server.predict("obey", order))
    assert kind == [status, "InternalServerException"]
    # Clients of this machine are told more than TorchServe's words.
    assert said == message or said.startswith((f"{message}: ", f"{message} "))
    assert shared_server.predict("obey", {"do": "nothing"}).status_code == 200


def test_answer_too_large(shared_server):
    """An answer over ``max_response_size`` is an error of its request, and the worker goes on (F28)."""
    before = shared_server.predict("obey", {}).json()["pid"]
    status, _, message = error(shared_server.predict("obey", {"do": "big", "bytes": 6553501}))

    assert status == 500
    assert "max_response_size" in message
    assert len(shared_server.predict("obey", {"do": "big", "bytes": 6553500}).content) == 6553500
    assert shared_server.predict("obey", {}).json()["pid"] == before


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/predictions/none", (404, "ModelNotFoundException", "Model not found: none")),
        (
            "/predictions/echo/9.9",
            (404, "ModelVersionNotFoundException", "Model version: 9.9 does not exist for model: echo"),
        ),
        ("/predictions/unstaffed", (503, "ServiceUnavailableException", NO_WORKER.format("unstaffed"))),
        (
            "/predictions",
            (
                404,
                "ResourceNotFoundException",
                "Requested resource is not found, please refer to API document.",
            ),
        ),
        (
            "/predictions/..%2f..%2fetc%2fpasswd",
            (404, "ModelVersionNotFoundException", None),
        ),
        ("/predictions/%00", (404, "ModelNotFoundException", "Model not found: \x00")),
        ("/predictions/" + "m" * 3000, (404, "ModelNotFoundException", "Model not found: " + "m" * 3000)),
    ],
    ids=["model", "version", "no worker", "no model", "dots", "nul", "long"],
)
def test_nobody_to_ask(shared_server, path, expected):
    """Unknown models, versions and routes, and models without workers, say so in JSON
    (reference 6.5, F12), and the first two what there is.
    """
    status, kind, message = error(shared_server.inference.post(path))
    if kind in ("ModelNotFoundException", "ModelVersionNotFoundException"):
        message, there_are, _ = message.partition(". There are: ")
        assert there_are

    if expected[2] is None:
        assert status == 404
    else:
        assert (status, kind, message) == expected


def test_gzip(shared_server):
    """A compressed body reaches the handler inflated; a bomb and an unknown coding are refused (F6)."""

    def send(body, coding):
        return shared_server.predict("echo", body, headers={"content-encoding": coding})

    assert send(gzip.compress(b"small"), "gzip").content == b"small"
    assert error(send(gzip.compress(bytes(10_000_000)), "gzip"))[0] == 413
    assert error(send(b"x", "br"))[0] == 415
    assert error(send(b"no gzip", "gzip"))[0] == 400


def test_keep_alive_is_the_clients_choice(shared_server):
    """With ``Connection: close`` the server answers and closes, also beside the hot routes."""
    for path in (b"/predictions/echo", b"/ping"):
        answer = converse(shared_server.port, CLOSE.replace(b"/ping", path))

        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.lower().count(b"\r\nconnection: ") == 1
        assert b"\r\nconnection: close\r\n" in answer.lower()


def test_ping(shared_server):
    """The server is healthy, by any method."""
    assert shared_server.inference.get("/ping").text == '{\n  "status": "Healthy"\n}\n'
    assert shared_server.inference.post("/ping").status_code == 200


def test_descriptions(shared_server):
    """OPTIONS, /api-description and /openapi.json give the description, /docs a page that loads nothing."""
    described = shared_server.inference.request("OPTIONS", "/").json()

    assert described["openapi"].startswith("3.")
    assert shared_server.inference.get("/openapi.json").json() == described
    assert shared_server.inference.post("/api-description").json() == described
    assert shared_server.inference.request("OPTIONS", "/predictions/echo").json()["info"]["title"]
    assert shared_server.inference.request("OPTIONS", "/predictions/none").status_code == 404
    for path in (
        "/explanations/echo",
        "/models/echo/invoke",
        "/echo/predict",
        "/echo/1.0/predict",
        "/invocations",
    ):
        assert shared_server.inference.request("OPTIONS", path).json()["info"]["title"], path
    page = shared_server.inference.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.replace("http://127", "").replace("http://localhost", "").replace(
        "http://www.w3.org", ""
    )


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("POST", "/", "GET, OPTIONS"), ("POST", "/v1/models", "GET"), ("DELETE", "/openapi.json", "GET")],
)
def test_wrong_method(shared_server, method, path, allow):
    """A route asked by a method it has not answers 405 and names those it has (F16)."""
    answer = shared_server.inference.request(method, path)

    assert answer.status_code == 405
    assert answer.json()["type"] == "MethodNotAllowedException"
    assert allow in answer.headers["allow"]


def test_metrics(shared_server):
    """What is predicted is counted under TorchServe's names."""
    before = shared_server.metric("ts_inference_requests_total", model_name="echo", model_version="default")
    shared_server.predict("echo", b"x")

    after = shared_server.metric("ts_inference_requests_total", model_name="echo", model_version="default")
    assert after == before + 1
    assert shared_server.metric("Requests2XX") >= 1
    assert shared_server.metric("modelserver_queue_requests", model_name="echo") == 0
    assert shared_server.metric("modelserver_batches_in_flight", model_name="echo") == 0
    assert shared_server.metric("modelserver_workers", model_name="echo", state="ready") == 2
