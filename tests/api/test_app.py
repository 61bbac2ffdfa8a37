"""The application of each listener."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, cast

import httpx
import pytest

from modelserver.api.app import Services, build_app
from modelserver.api.docs_page import render_docs
from modelserver.api.openapi import describe_listener
from modelserver.settings.settings import Settings

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects tags and attributes, and checks that every tag is closed in order."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html.decode())
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def document():
    return describe_listener("all", "1.2.3")


@pytest.fixture(scope="module")
def page(document):
    return Page(render_docs(document))


async def test_examples_go_to_the_listener_that_was_asked() -> None:
    """Whatever its port is; names of parameters are not broken inside words."""
    for role, port in (("inference", 8080), ("management", 8081), ("metrics", 8082)):
        app = build_app({cast("Any", role)}, Services(cast("Any", None), cast("Any", None), Settings()))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://host:{port}") as client:
            page = (await client.get("/docs")).text
        assert f"http://host:{port}/" in page
        assert "http://localhost:8080" not in page
        assert "td:first-child { white-space: nowrap; }" in page
