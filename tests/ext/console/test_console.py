import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from tests.ext.console.doubles import Waiting

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext import console as package
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier

STATIC = Path(package.__file__).parent / "static"
CHOICE = {"size": 8, "policy": "greedy", "delay": 100, "workers": 1}


async def test_the_page_may_run_nothing_but_its_own_files(client):
    """A strict policy, no inline scripts or styles, no other hosts, no cookie, and nothing to keep."""
    answer = await client.get("/console")
    policy = answer.headers["content-security-policy"]

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers
    assert not re.search(r"<style| style=| on\w+=|https?://|<script>", answer.text)


async def test_every_file_is_served_with_its_kind(client):
    """Files that the page and its modules name exist; others, or other places, are not found."""
    page = (await client.get("/console")).text
    named = set(re.findall(r'(?:href|src)="console/static/([^"]+)"', page))
    for module in STATIC.glob("*.js"):
        named |= set(re.findall(r'from "\./([^"]+)"', module.read_text("utf-8")))
    kinds = {}
    for name in named:
        answer = await client.get(f"/console/static/{name}")
        assert answer.status_code == 200, name
        kinds[Path(name).suffix] = answer.headers["content-type"]

    assert len(named) > 10
    assert kinds[".js"] == "text/javascript; charset=utf-8"
    assert kinds[".css"] == "text/css; charset=utf-8"
    for name in ("no.js", "../console.py", "vendor/uplot/LICENSE", ""):
        assert (await client.get(f"/console/static/{name}")).status_code == 404


def test_no_text_becomes_markup():
    """The modules only make text nodes, keep nothing and evaluate nothing."""
    forbidden = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|(local|session)Storage|cookie"
    results = [path.name for path in STATIC.glob("*.js") if re.search(forbidden, path.read_text("utf-8"))]

    assert results == []
    assert "MIT License" in (STATIC / "vendor" / "uplot" / "LICENSE").read_text("utf-8")


async def test_the_page_has_one_address(client):
    """With a slash it leads to that without, to which its files are relative."""
    answer = await client.get("/console/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../console")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/console", 405),
        ("POST", "/console/events", 405),
        ("PUT", "/console/settings", 405),
        ("POST", "/console/logs", 405),
        ("GET", "/console/estimate", 405),
        ("GET", "/console/try/predictions/m", 405),
        ("POST", "/console/try/models/m", 404),
        ("GET", "/console/other", 404),
    ],
)
async def test_other_requests_are_refused(client, method, path, status):
    """As everywhere, with the error's type in JSON; only paths of inference can be tried."""
    answer = await client.request(method, path)

    assert answer.status_code == status
    assert answer.json()["code"] == status


@pytest.mark.parametrize("path", ["events", "settings", "logs", "try/predictions/m"])
async def test_a_name_that_was_made_to_lead_here_gets_no_data(client, path):
    """A page of that name could read what it was given (F65); the page itself holds nothing."""
    evil = {"host": "evil.example:8081"}
    answer = await client.get(f"/console/{path}", headers=evil)

    assert (answer.status_code, answer.json()["type"]) == (403, "ForeignHostException")
    assert (await client.get("/console", headers=evil)).status_code == 200


async def test_settings_tell_their_source(client):
    """Each with its value, source and meaning; secrets are masked."""
    answer = await client.get("/console/settings")
    described = {each["name"]: each for each in answer.json()["settings"]}

    assert (described["job_queue_size"]["value"], described["job_queue_size"]["source"]) == ("7", "flag --x")
    assert described["batch_policy"]["source"] == "default"
    assert described["keystore_pass"]["value"] == "********"
    assert "swordfish" not in answer.text
    assert answer.json()["options"]["batchSize"] == "The most instances in a batch."
    assert "sandbox" in answer.headers["content-security-policy"]


async def test_a_stream_asks_for_its_token_each_time(console):
    """Whether it may go on is what the verifier says at that moment."""
    now = 0.0
    verifier = Verifier(lambda: now)
    verifier.replace([(Scope.MANAGEMENT, "right", 60.0)])
    console._services = type("S", (), {"tokens": type("T", (), {"verifier": verifier})})
    request = type("R", (), {"headers": {"authorization": "Bearer right"}})
    allowed = console._allowed(request)

    assert allowed()
    now = 61.0
    assert not allowed()


async def test_an_estimate_is_cancelled_when_its_client_leaves(console):
    """Estimates of other clients need not wait for it."""
    waiting = Waiting()
    console._estimates._helpers.close()
    console._estimates._helpers = waiting
    metrics = ServerMetrics(hostname="h").model("m", "1.0")
    model = SimpleNamespace(histories={}, metrics=metrics, pool=SimpleNamespace(workers=[]))
    console._services.registry.get = lambda *_: model
    request = json.dumps({"model": "m", "version": "1.0", "now": CHOICE, "then": CHOICE}).encode()
    pieces, left = iter([{"type": "http.request", "body": request}]), asyncio.Event()

    async def receive():
        if (piece := next(pieces, None)) is not None:
            return piece
        await left.wait()
        return {"type": "http.disconnect"}

    path = "/console/estimate"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
    answering = asyncio.ensure_future(console._response(path, Request(scope, receive)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (waiting.count, answering.done()) == (1, False)

    left.set()
    assert (await asyncio.wait_for(answering, 5.0)).status_code == 499
    await asyncio.sleep(0)
    assert waiting.count == 0


async def test_estimates_need_what_they_are_made_of(client):
    """What is no JSON, has an unknown policy, names no model or is too much is refused with the reason."""
    request = {"model": "m", "version": "1.0", "now": CHOICE, "then": CHOICE}
    wrong = [
        (b"{", 400, "cannot be estimated"),
        (json.dumps({**request, "now": {**CHOICE, "policy": "best"}}).encode(), 400, "best"),
        (json.dumps({**request, "now": {**CHOICE, "workers": 65}}).encode(), 400, "64"),
        (json.dumps({**request, "factor": 0}).encode(), 400, "> 0.0"),
        (json.dumps(request).encode(), 404, "Model not found: m"),
        (b" " * 2000, 413, ""),
    ]
    for body, status, message in wrong:
        answer = await client.post("/console/estimate", content=body)

        assert answer.status_code == status, answer.text
        assert message in answer.json()["message"]


async def test_history_has_the_seconds_of_its_request(client):
    """Of a version, or of all; what is no number is refused."""
    answer = await client.get("/console/history?version=m/1.0&seconds=900")
    wrong = await client.get("/console/history?seconds=1e9")

    assert (answer.status_code, answer.json()["ages"]) == (200, [])
    assert (wrong.status_code, wrong.json()["message"]) == (400, "seconds=1e9: a whole number is needed")
    assert (await client.post("/console/history")).status_code == 405
