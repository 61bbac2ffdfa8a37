import re
import shlex
from html import unescape
from html.parser import HTMLParser

import httpx
import pytest
from tests.documents import describe_listener, listener

from modelserver.ext.docs.page import CONTENT_SECURITY_POLICY, add_routes, listed, render_docs
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.app import build_app
from modelserver.surface.api.application import UNLISTED
from modelserver.surface.api.services import Services

BASE = "http://127.0.0.1:8080"
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects tags and attributes, and checks that every tag is closed in order."""

    def __init__(self, html):
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
def page():
    return Page(render_docs(describe_listener("all"), BASE, listed(listener("all"))))


def test_every_operation_is_listed(page):
    assert page.open == []
    document = describe_listener("all")
    names = [each for item in document["paths"].values() for each in item.values() if UNLISTED not in each]
    assert page.tags.count("details") == len(names)
    for path, item in document["paths"].items():
        assert path in page.text
        for operation in item.values():
            assert all(parameter["name"] in page.text for parameter in operation.get("parameters", []))
            assert all(status in page.text for status in operation["responses"])


def test_nothing_is_loaded_or_run(page):
    """The page works offline and holds neither scripts nor links to other places (F65)."""
    assert {"script", "link", "img", "iframe", "object", "form"}.isdisjoint(page.tags)
    names = {name for name, _ in page.attributes}
    assert not [name for name in names if name in {"src", "href", "style"} or name.startswith("on")]
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "style-src 'unsafe-inline'" in CONTENT_SECURITY_POLICY
    assert "script" not in CONTENT_SECURITY_POLICY


def test_every_text_is_escaped():
    """Markup in any text of the document is shown, not interpreted (F65)."""
    evil = "<script>alert('x')</script>\"><img src=x>"
    schema = {"type": "string", "enum": [evil], "default": evil}
    content = {evil: {"schema": {"properties": {evil: {"type": evil}}}}}
    operation = {
        "operationId": evil,
        "tags": [evil],
        "summary": evil,
        "parameters": [{"name": evil, "in": "query", "description": evil, "schema": schema, "example": evil}],
        "requestBody": {"description": evil, "content": content},
        "responses": {"200": {"description": evil, "headers": {evil: {}}, "content": {}}},
    }
    info = {"title": evil, "version": evil, "description": evil}
    page = Page(
        render_docs({"info": info, "paths": {f"/{evil}": {"get": operation}}}, f"http://{evil}", {evil})
    )

    assert page.open == []
    assert {"script", "img"}.isdisjoint(page.tags)
    assert page.text.count(evil) >= 10


def test_examples_are_shell_commands():
    html = render_docs(describe_listener("all"), "http://127.0.0.1:9000/", listed(listener("all"))).decode()
    examples = re.findall(r"<h3>Example</h3>\n<pre[^>]*><code>(.*?)</code>", html, re.S)
    lines = [unescape(example) for example in examples]

    assert len(lines) == html.count("<details>")
    assert all(shlex.split(line)[0] == "curl" for line in lines)
    assert all(any(word.startswith("http://127.0.0.1:9000/") for word in shlex.split(line)) for line in lines)
    assert "curl -X POST http://127.0.0.1:9000/predictions/resnet-152 -T kitten.jpg" in lines


def test_odd_documents_do_not_break_the_page():
    """Missing parts, unknown references and schemas that refer to themselves still give a page."""
    loop = {"properties": {"again": {"$ref": "#/components/schemas/Loop"}}}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Loop"}}}
    lost = {"application/json": {"schema": {"$ref": "#/nowhere/at/all"}}}
    paths = {
        "/a": {"post": {"requestBody": {"required": True, "content": content}, "responses": {"200": {}}}},
        "/b": {"post": {"requestBody": {"required": True, "content": lost}}},
    }

    assert (
        Page(render_docs({"paths": paths, "components": {"schemas": {"Loop": loop}}}, BASE, {""})).open == []
    )
    assert Page(render_docs({}, BASE, ())).open == []


async def test_examples_go_to_the_listener_of_the_page():
    for role, port in (("inference", 8080), ("management", 8081), ("metrics", 8082)):
        services = Services(None, None, Settings(), *(None,) * 5)
        app = build_app({role}, services, [add_routes])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://host:{port}") as client:
            page = (await client.get("/docs")).text
        assert f"http://host:{port}/" in page
        assert "td:first-child { white-space: nowrap; }" in page
