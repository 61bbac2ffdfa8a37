"""The page: no scripts, no external resources, all text escaped (F65).

It is made from the OpenAPI document of :mod:`modelserver.surface.api.app`, with an example for each
operation.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Collection
from html import escape
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import HTMLResponse

from modelserver.surface.api.application import Application
from modelserver.surface.api.services import Services

Document: TypeAlias = dict[str, Any]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_MAX_DEPTH = 6

_STYLE = """
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #f4f6f9; --quiet: #5b6472; --accent: #0b62c4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #353b45; --soft: #1d2128; --quiet: #a0a9b8; --accent: #6cb0ff; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { margin: 0; line-height: 1.2; }
h2 { margin: 2.5rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .4rem 0; } a { color: var(--accent); } .quiet { color: var(--quiet); }
code, pre { font: .9em/1.45 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .7rem; }
pre { overflow-x: auto; }
pre code { overflow-wrap: normal; }
td code { overflow-wrap: break-word; } td:first-child { white-space: nowrap; }
details { border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0; }
summary { cursor: pointer; padding: .6rem .8rem; }
summary:focus-visible { outline: 2px solid var(--accent); }
.inside { padding: 0 .8rem .8rem; border-top: 1px solid var(--line); }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; text-transform: uppercase; }
.old { text-decoration: line-through; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; }
th, td { border-bottom: 1px solid var(--line); }
"""


def add_routes(app: Application, _: Services) -> None:
    """Adds the route; the page describes those that are added later, too."""

    async def docs(request: Request) -> HTMLResponse:
        document = await asyncio.to_thread(app.openapi)
        page = render_docs(document, str(request.base_url), listed(app))
        return HTMLResponse(page, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

    app.section("Description")(docs, "get /docs", "docs", "This document, for people.", HTMLResponse)


def listed(app: Application) -> set[str]:
    """The names of the operations on the page: for the others, another method of their path does the same."""
    return {each.name for each in app.operations if not each.unlisted}


def render_docs(document: Document, base_url: str, names: Collection[str]) -> bytes:
    """The page for the operations of these names in an OpenAPI document, in UTF-8; its examples use
    ``base_url``.
    """
    return _Page(document, base_url.rstrip("/"), names).render().encode(errors="replace")


class _Page:
    def __init__(self, document: Document, base_url: str, names: Collection[str]) -> None:
        self._names = names
        self._document = document
        self._base_url = base_url

    def render(self) -> str:
        info = self._document.get("info", {})
        title = _text(info.get("title", "API"))
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
            f'<header>\n<h1>{title}</h1>\n<p class="quiet">Version {_text(info.get("version", ""))}</p>\n'
            f"<p>{_text(info.get('description', ''))}</p>\n</header>\n<main>\n"
            f"{self._sections()}</main>\n</body>\n</html>\n"
        )

    def _sections(self) -> str:
        sections: dict[str, list[str]] = {}
        for path, item in self._document.get("paths", {}).items():
            for method in _METHODS:
                if method in item and item[method].get("operationId", "") in self._names:
                    tag = (item[method].get("tags") or ["Operations"])[0]
                    sections.setdefault(tag, []).append(self._operation(path, method, item[method]))
        return "".join(f"<h2>{_text(tag)}</h2>\n{''.join(parts)}" for tag, parts in sections.items())

    def _operation(self, path: str, method: str, operation: Document) -> str:
        old = ' class="old"' if operation.get("deprecated") else ""
        parts = [
            f"<p>{_text(operation['description'])}</p>\n" if "description" in operation else "",
            _parameters(operation.get("parameters", [])),
            self._body(operation.get("requestBody")),
            self._responses(operation.get("responses", {})),
            self._example(path, method, operation),
        ]
        return (
            f'<details>\n<summary><span class="method">{_text(method)}</span> <code{old}>{_text(path)}</code>'
            f' <span class="quiet">{_text(operation.get("summary", ""))}</span></summary>\n'
            f'<div class="inside">\n{"".join(parts)}</div>\n</details>\n'
        )

    def _body(self, body: Document | None) -> str:
        if not body:
            return ""
        need = "" if body.get("required") else ' <span class="quiet">(optional)</span>'
        description = f"<p>{_text(body.get('description', ''))}</p>\n"
        return f"<h3>Body{need}</h3>\n{description}{self._content(body.get('content', {}))}"

    def _responses(self, responses: Document) -> str:
        rows = []
        for status, response in responses.items():
            headers = ", ".join(response.get("headers", {}))
            extra = f'<br><span class="quiet">Headers: {_text(headers)}</span>' if headers else ""
            kinds = ", ".join(response.get("content", {}))
            described = f"{_text(response.get('description', ''))}{extra}"
            rows.append(
                f"<tr><td><code>{_text(status)}</code></td><td>{described}</td><td>{_text(kinds)}</td></tr>\n"
            )
        shapes = "".join(
            self._content(response.get("content", {}))
            for status, response in responses.items()
            if str(status).startswith("2")
        )
        return f"<h3>Responses</h3>\n{_table(('Status', 'Meaning', 'Content'), rows)}{shapes}"

    def _content(self, content: Document) -> str:
        shapes = []
        for kind, media in content.items():
            schema = media.get("schema", {})
            if self._resolved(schema).get("properties") or self._resolved(schema).get("items"):
                shape = json.dumps(self._shape(schema, 0), indent=2, ensure_ascii=False)
                shapes.append(f'<p class="quiet">{_text(kind)}</p>\n{_block(shape)}')
        return "".join(shapes)

    def _example(self, path: str, method: str, operation: Document) -> str:
        query = []
        for parameter in operation.get("parameters", []):
            if "example" not in parameter:
                continue
            value = quote(str(parameter["example"]), safe="")
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value)
            elif parameter["in"] == "query":
                query.append(f"{quote(parameter['name'], safe='')}={value}")
        url = f"{self._base_url}{path}" + (f"?{'&'.join(query)}" if query else "")
        command = ["curl"] + ([] if method == "get" else ["-X", method.upper()]) + [shlex.quote(url)]
        command += self._example_body(operation.get("requestBody") or {})
        return f"<h3>Example</h3>\n{_block(' '.join(command))}"

    def _example_body(self, body: Document) -> list[str]:
        content = body.get("content", {})
        if not content or body.get("required") is False:
            return []
        if "application/json" not in content or "*/*" in content:
            return ["-T", shlex.quote(str(content.get("*/*", {}).get("example", "FILE")))]
        media = content["application/json"]
        value = media["example"] if "example" in media else self._shape(media.get("schema", {}), 0)
        return ["-H", shlex.quote("Content-Type: application/json"), "-d", shlex.quote(json.dumps(value))]

    def _shape(self, schema: Document, depth: int) -> Any:
        """An example value of a schema: its property names with types for values."""
        schema = self._resolved(schema)
        if depth > _MAX_DEPTH:
            return "…"
        if "properties" in schema:
            return {name: self._shape(child, depth + 1) for name, child in schema["properties"].items()}
        if schema.get("type") == "array":
            return [self._shape(schema.get("items", {}), depth + 1)]
        return " | ".join(map(str, schema["enum"])) if "enum" in schema else schema.get("type", "any")

    def _resolved(self, schema: Document) -> Document:
        """The schema that a local `$ref` names; an unknown one is empty."""
        target: Any = schema
        for _ in range(_MAX_DEPTH):
            reference = target.get("$ref", "") if isinstance(target, dict) else ""
            if not reference:
                break
            target = self._document
            for key in reference.removeprefix("#/").split("/"):
                target = target.get(key, {}) if isinstance(target, dict) else {}
        return target if isinstance(target, dict) else {}


def _parameters(parameters: list[Document]) -> str:
    if not parameters:
        return ""
    rows = []
    for parameter in parameters:
        schema = parameter.get("schema", {})
        need = ", required" if parameter.get("required") else ""
        default = (
            f"; default <code>{_text(json.dumps(schema['default']))}</code>" if "default" in schema else ""
        )
        choice = f"; one of {_text(', '.join(map(str, schema['enum'])))}" if "enum" in schema else ""
        rows.append(
            f"<tr><td><code>{_text(parameter.get('name', ''))}</code></td>"
            f"<td>{_text(parameter.get('in', ''))}{need}</td><td>{_text(schema.get('type', 'any'))}</td>"
            f"<td>{_text(parameter.get('description', ''))}{choice}{default}</td></tr>\n"
        )
    return f"<h3>Parameters</h3>\n{_table(('Name', 'Where', 'Type', 'Meaning'), rows)}"


def _table(headings: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>"
    return f'<div class="wide">{table}</div>\n'


def _block(text: str) -> str:
    return f'<pre tabindex="0"><code>{_text(text)}</code></pre>\n'


def _text(value: object) -> str:
    return escape(str(value))
