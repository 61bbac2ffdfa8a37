"""What has happened to a server: listed, followed, and kept; and what is wrong with it (docs/runbook.md)."""

import json

import pytest
from tests.e2e.serving import Home, Server, serving


@pytest.mark.slow  # starts two servers
def test_events_are_listed_followed_and_stored(tmp_path, model_store):
    home, kinds = Home(tmp_path / "home"), []
    with serving(Server(home, model_store)) as server:
        server.registered("echo.mar")
        server.management.put("/models/echo?batch_size=3")
        with server.management.stream("GET", "/events?follow=true&model=echo&since=0") as stream:
            server.unregister("echo")
            for line in stream.iter_lines():
                kinds.append(json.loads(line)["kind"])
                if kinds[-1] == "removed":
                    break
        last = server.management.get("/events?limit=1").json()["last"]
        address = str(server.management.base_url)
        well = home.run("status", "--management", address)
        server.registered("syntax.mar", initial_workers=0)
        server.management.put("/models/syntax?min_worker=1&synchronous=true")
        failing = home.run("status", "--management", address)
    with serving(Server(home, model_store)) as server:
        page = server.management.get("/events?since=0").json()

    assert (well.returncode, well.stdout) == (0, f"{address}: 0 models, all well\n")
    assert failing.returncode == 1
    assert "FAILS  syntax 1.0: no worker is loaded: " in failing.stdout
    assert " load_failed" in failing.stdout
    assert home.run("status", "--management", address).returncode == 2
    assert kinds[:2] == ["registered", "loaded"]
    assert "changed" in kinds
    assert [event["id"] for event in page["events"]] == list(range(1, page["last"] + 1))
    assert page["last"] > last
    assert [event["kind"] for event in page["events"]].count("started") == 2
    assert {"stopping", "removed"} <= {event["kind"] for event in page["events"]}
