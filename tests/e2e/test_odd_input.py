"""Every route with input that nobody should send: the answer is always HTTP, and an error always JSON."""

import json
import re

import pytest
from tests.e2e.raw import converse

pytestmark = pytest.mark.usefixtures("log")

_INFERENCE = """
    / /ping /predictions /predictions/echo /predictions/echo/1.0 /predictions/nobody /predictions/echo/9
    /explanations/echo /invocations /models/echo/invoke /echo/predict /v1/models /v1/models/echo
    /v1/models/nobody /v1/models/echo:predict /v1/models/rows:explain /v1/models/nobody:predict /v2
    /v2/models/echo/infer /api-description /openapi.json /docs /metrics /nothing
"""
INFERENCE = tuple(_INFERENCE.split())
_MANAGEMENT = """
    / /models /models/nobody /models/echo/9 /models/echo/all /models/nobody/1/set-default
    /v1/models/nobody /workflows /docs /openapi.json /ping
"""
MANAGEMENT = tuple(_MANAGEMENT.split())
METRICS = ("/", "/metrics", "/models")
ROUTES = [
    (port, path)
    for port, paths in (("inference", INFERENCE), ("management", MANAGEMENT), ("metrics", METRICS))
    for path in paths
]

JSON = "Content-Type: application/json"
MULTIPART = "Content-Type: multipart/form-data; boundary=b"
# ``int`` refuses texts of so many digits.
LONG_NUMBER = b"1" + b"0" * 5000
BODIES = [
    ((), b""),
    ((JSON,), b'{"a'),
    ((JSON,), b"[1]"),
    ((JSON,), b"[" * 100_000),
    ((JSON,), b'{"url": "\\ud800\\u0000.mar", "model_name": 5, "batch_size": [1]}'),
    ((JSON,), '{"instances": [1]}'.encode("utf-16")),
    ((JSON,), b'{"instances": [NaN, 1' + b"0" * 5000 + b"]}"),
    ((JSON,), b'{"url": "nothing.mar", "batch_size": %b, "ready": %b}' % (LONG_NUMBER, LONG_NUMBER)),
    ((JSON,), b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%b], "data": [1]}]}' % LONG_NUMBER),
    (
        (JSON,),
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1],'
        b' "parameters": {"binary_data_size": %b}}]}' % LONG_NUMBER,
    ),
    ((f"Inference-Header-Content-Length: {LONG_NUMBER.decode()}",), b"{}"),
    ((JSON,), b"\xff\xfe\xfd"),
    (("Content-Type: \xff;;;==",), b"x"),
    ((MULTIPART,), b"--b\r\nContent-Disp"),
    ((MULTIPART,), b"--b\r\nA: b\r\n\r\nx\r\n--b--\r\n"),
    (("Content-Type: multipart/form-data",), b"--b"),
    (("Content-Encoding: br",), b"x"),
    (("Content-Encoding: gzip",), b"x"),
    (("X-A: \xff\xfe", "x-request-id: \xff"), b"x"),
    (("x-request-timeout-ms: " + "9" * 400,), b"x"),
    (("x-request-timeout-ms: -5", "Expect: something"), b"x"),
]
QUERIES = [
    *(f"batch_size={n}&min_worker={n}&limit={n}&url=nothing.mar" for n in ("-1", "abc", "1e9", "")),
    "url=nothing.mar&url=..%2f..%2fetc%2fpasswd&batch_size=1&batch_size=2",
    "min_worker=99999999999999999999&next_page_token=99999999999999999999&url=%00",
    "limit=" + "9" * 5000,
    "url=http://[&model_name=%2e%2e",
    "url=" + "a" * 50_000,
    "%zz=%&&&==\\%ff%00",
    "&".join(f"p{number}=1" for number in range(3000)),
]
_STRAYS = "// /% /%2e%2e/%2e%2e/etc/passwd /../../etc/passwd * /; ?"
PATHS = [
    *(f"/predictions/{name}" for name in ("..", "%2e%2e", "%00", "echo%2f9", "%ff%fe", "x" * 50_000)),
    *(f"/predictions/{name}" for name in ("%0d%0aX-A:y", "<script>", "echo/%00")),
    *(f"/v1/models/{name}:predict" for name in ("%00", "%ff", "a%2fb", "")),
    "/v1/models/" + "x" * 50_000,
    *(f"/models/{name}" for name in ("%00", "..", "%0d%0aSet-Cookie:%20x", "a%2fb")),
    *_STRAYS.split(),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
NO_HTTP = [
    "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "{method} {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: bogus\r\n\r\nxx",
    "{method} {path} HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    "{method} {path} HTTP/1.1\r\nHost: x\r\nX-\xff: 1\r\n\r\n",
    "{method} {path} HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    "{method} {path} HTTP/3.7\r\nHost: x\r\n\r\n",
    "{method}{path}\r\n\r\n",
    "BREW {path} HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.fixture(scope="module")
def ports(shared_server):
    """The port of each listener of a server with the models ``echo`` and ``rows``."""
    shared_server.registered("echo.mar").registered("rows.mar")
    names = ("inference", "management", "metrics")
    return {name: shared_server.port_of(name) for name in names}


@pytest.fixture
def log(shared_server):
    """The server's log, which after the test must have no traceback."""
    before = len(shared_server.home.log())
    yield
    news = shared_server.home.log()[before:]
    assert "Traceback" not in news
    assert "ERROR" not in news


def exchange(port, sent):
    """Sends bytes; returns status, headers and body of the answer, which must be one."""
    received = converse(port, sent)
    assert received.count(b"HTTP/1.1 ") == 1, (sent[:200], received[:1000])
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    result = re.fullmatch(rb"HTTP/1\.1 (\d{3}) .*", lines[0])
    assert result, (sent[:200], received[:200])
    fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
    return int(result[1]), fields, body


def request(method, path, lines=(), body=b""):
    """A request after which the connection ends."""
    fields = ["Host: x", "Connection: close", *lines, f"Content-Length: {len(body)}"]
    head = [f"{method} {path} HTTP/1.1", *fields]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def check(port, path, sent, *, head=False):
    """Whatever was sent is answered once, and an error is explained in JSON."""
    status, fields, body = exchange(port, sent)
    what = (sent[:200], status, body[:300])
    assert b"x-request-id" in fields, what
    assert status < 500 or status == 503, what
    if head:
        assert body == b"", what
    elif status >= 400:
        error = json.loads(body)
        assert fields[b"content-type"] == b"application/json", what
        assert fields[b"content-length"] == b"%d" % len(body), what
        assert error["code"] == status, what
        assert error["type"].endswith("Exception"), what
        assert error["message"], what
        assert "Traceback" not in error["message"], what
        if path.startswith("/v1/"):
            assert error["error"], what
    return status


@pytest.mark.parametrize("method", METHODS)
def test_unknown_methods_are_refused(ports, method):
    """Every route responds to every method; the response to an unknown one is JSON (F1, F16)."""
    for port, path in ROUTES:
        check(ports[port], path, request(method, path), head=method == "HEAD")


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_odd_bodies_are_accepted_or_refused(ports, number):
    """Every route accepts or refuses bodies and headers that have no meaning for it (F1 to F4, F6 to F8)."""
    lines, body = BODIES[number]
    for port, path in ROUTES:
        for method in ("POST", "PUT"):
            check(ports[port], path, request(method, path, lines, body))


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_odd_parameters_are_accepted_or_refused(ports, number):
    """Every route accepts or refuses parameters that are absurd, very long or repeated (F14)."""
    for port, path in ROUTES:
        for method in ("GET", "POST", "PUT"):
            check(ports[port], path, request(method, f"{path}?{QUERIES[number]}"))


@pytest.mark.parametrize("port", ["inference", "management", "metrics"])
def test_odd_paths_are_refused(ports, port):
    """Encoded dots, slashes, zeros and line ends, and very long paths, are not found (F12, F13)."""
    for path in PATHS:
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert check(ports[port], "", request(method, path)) >= 400


@pytest.mark.parametrize("number", range(len(NO_HTTP)))
def test_invalid_http_gets_400_on_every_route(ports, number):
    """Invalid HTTP is a 400 on every route (F5, F16)."""
    for port, path in ROUTES:
        sent = NO_HTTP[number].format(method="POST", path=path).encode()
        assert check(ports[port], "", sent) == 400


def test_http_1_0_is_served(ports):
    """HTTP/1.0 is served, with or without a host."""
    for port, path in ROUTES:
        for sent in (f"GET {path} HTTP/1.0\r\n\r\n", f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n"):
            check(ports[port], path, sent.encode())


def test_server_lives_on(shared_server):
    """After all this the server serves, and holds nothing of it."""
    assert shared_server.predict("echo", b"x").content == b"x"
    assert shared_server.inference.get("/ping").status_code == 200
    assert shared_server.metric("modelserver_queue_requests") == 0
    assert shared_server.metric("modelserver_batches_in_flight") == 0
