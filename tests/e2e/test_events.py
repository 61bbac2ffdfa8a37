"""What has happened to a server: listed, followed, and kept for the next one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import Home, Server, serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow  # starts two servers
def test_events_are_listed_followed_and_kept(tmp_path: Path, model_store: Path) -> None:
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
    with serving(Server(home, model_store)) as server:
        page = server.management.get("/events?since=0").json()

    assert kinds[:2] == ["registered", "loaded"]
    assert "changed" in kinds
    assert [event["id"] for event in page["events"]] == list(range(1, page["last"] + 1))
    assert page["last"] > last
    assert [event["kind"] for event in page["events"]].count("started") == 2
    assert {"stopping", "removed"} <= {event["kind"] for event in page["events"]}
