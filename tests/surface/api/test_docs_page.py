import re
import shlex
from html import unescape

from tests.surface.api.conftest import Page

from modelserver.surface.api.application import UNLISTED
from modelserver.surface.api.docs_page import CONTENT_SECURITY_POLICY, render_docs


def test_every_operation_is_listed(document, page):
    assert page.open == []
    listed = [each for item in document["paths"].values() for each in item.values() if UNLISTED not in each]
    assert page.tags.count("details") == len(listed)
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
    operation = {
        "tags": [evil],
        "summary": evil,
        "parameters": [{"name": evil, "in": "query", "description": evil, "schema": schema, "example": evil}],
        "requestBody": {
            "description": evil,
            "content": {evil: {"schema": {"properties": {evil: {"type": evil}}}}},
        },
        "responses": {"200": {"description": evil, "headers": {evil: {}}, "content": {}}},
    }
    info = {"title": evil, "version": evil, "description": evil}
    page = Page(
        render_docs({"info": info, "paths": {f"/{evil}": {"get": operation}}}, base_url=f"http://{evil}")
    )

    assert page.open == []
    assert {"script", "img"}.isdisjoint(page.tags)
    assert page.text.count(evil) >= 10


def test_examples_are_shell_commands(document):
    html = render_docs(document, base_url="http://127.0.0.1:9000/").decode()
    lines = [
        unescape(line) for line in re.findall(r"<h3>Example</h3>\n<pre[^>]*><code>(.*?)</code>", html, re.S)
    ]

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

    assert Page(render_docs({"paths": paths, "components": {"schemas": {"Loop": loop}}})).open == []
    assert Page(render_docs({})).open == []
