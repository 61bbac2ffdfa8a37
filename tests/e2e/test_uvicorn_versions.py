"""The server with the oldest uvicorn and httptools that pyproject.toml admits, and with the newest there are.

They are installed into a folder of their own, which takes some seconds, and found there first.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.raw import CLOSE, converse, head, post, statuses
from tests.e2e.serving import MODEL_CODE, ROOT, Home, Server, archived, run_to_end, serving

pytestmark = [
    pytest.mark.slow,  # installs packages, and starts a server with each
    pytest.mark.timeout(300),
]

NAMES = ("httptools", "uvicorn")


def oldest(name):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(rf'"{name}[^">]*>=([\d.]+)"', project)
    return f"{name}=={version}"


@pytest.fixture(scope="module", params=["oldest", "newest"])
def packages(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    requirements = [oldest(name) if request.param == "oldest" else name for name in NAMES]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False, timeout=120)
    if "Could not find a version" in done.stderr and "from versions: none" in done.stderr:
        pytest.skip("there is no index of packages to install from")
    assert done.returncode == 0, done.stderr
    return folder


def search_path(packages):
    roots = [packages, ROOT / "app", ROOT / "handlers"]
    return os.pathsep.join(map(str, roots))


@pytest.fixture(scope="module")
def server(packages, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    archived(store, "echo", MODEL_CODE / "echo.py")
    home = Home(tmp_path_factory.mktemp("home"), {"PYTHONPATH": search_path(packages)})
    settings = {"max_request_size": 10_000, "load_models": "echo.mar"}
    with serving(Server(home, store, settings=settings)) as started:
        assert str(packages) in Path(f"/proc/{started.pid}/maps").read_text()
        yield started


def test_connection_keeps_its_rules(packages):
    """All tests of the connection and of the application's requests pass with them."""
    where = f"import {', '.join(NAMES)} as last; print({NAMES[0]}.__file__, last.__file__)"
    environment = {**os.environ, "PYTHONPATH": search_path(packages)}
    result = subprocess.run(
        [sys.executable, "-c", where], env=environment, capture_output=True, text=True, check=True
    )
    assert all(Path(each).is_relative_to(packages) for each in result.stdout.split())
    files = [f"tests/surface/http/test_{name}.py" for name in ("asgi_cycle", "connection")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = run_to_end(command, ROOT, environment, 240)

    assert done.returncode == 0, done.stdout[-5000:]


def test_requests_of_both_ways_share_a_connection(server):
    """Predictions and requests to the application are answered in their order, whole or in chunks."""
    chunks = head("/predictions/echo", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    received = converse(server.port, post("/predictions/echo", b"first"), chunks, CLOSE)

    assert statuses(received) == [200, 200, 200]
    assert b"\r\n\r\nfirst" in received
    assert b"\r\n\r\nabcde" in received
    assert b'"status": "Healthy"' in received


def test_refusals_come_before_bodies(server):
    """Too large a body, on both ways, and what is no HTTP."""
    for path in ("/predictions/echo", "/elsewhere"):
        assert statuses(converse(server.port, head(path, "Content-Length: 10001"), half_close=True)) == [413]
    assert statuses(converse(server.port, b"hello\r\n\r\n")) == [400]


def test_application_is_served(server):
    """Management, metrics, and the document of the routes; what a proxy says of its client is in the log."""
    assert server.management.get("/models").json()["models"][0]["modelName"] == "echo"
    assert server.management.put("/models/echo", params={"min_worker": 1}).status_code == 202
    assert server.metrics.get("/metrics").status_code == 200
    assert server.inference.options("/").json()["openapi"]
    server.inference.get("/ping", headers={"X-Forwarded-For": "192.0.2.7"})
    server.home.wait_for_log("192.0.2.7:0", "access_log.log")
