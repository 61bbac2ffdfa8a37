"""When two answers are the same: what differs from run to run is masked first."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from typing import Any

from modelserver.tools.migrate.calls import Response

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MASKS = (
    (_UUID.encode(), b"<uuid>"),
    (rb'(Hostname=)"[^"]*"', rb'\1"<host>"'),
    (rb'("startTime": )"[^"]*"', rb'\1"<time>"'),
    (rb'("pid": )-?\d+', rb"\1<pid>"),
    (rb'("memoryUsage": )\d+', rb"\1<bytes>"),
    (rb'("id": )"\d+"', rb'\1"<id>"'),
    # These depend on the machine, which may have a GPU.
    (rb'("deviceType": )"(cpu|gpu)"', rb'\1"<device>"'),
    (rb'("gpu": )(true|false)', rb"\1<gpu>"),
    (rb'("gpuUsage": )"[^"]*"', rb'\1"<gpu>"'),
    # Causes are long and depend on the machine: only their presence is compared.
    (rb'("Failed to start workers for model \S+ version: [\w.]*?\w)\. [^\n]*"', rb'\1. <cause>"'),
    (rb'("(?:[^"\s]+: )?model-config\.yaml: )[^\n]*"', rb'\1<reason>"'),
)
_MASKS_OF_HANDLERS = (
    # Probabilities are compared to five digits: further digits differ between machines.
    (rb"(\d\.\d{5})\d{4,}", rb"\1"),
    # OpenAPI documents are each server's own.
    (rb'(?s)^\{\n  "openapi": .*$', b'{\n  "openapi": "<document>"\n}\n'),
    # Folders of unpacked archives differ.
    (rb"/[^\s\"']*/(models/[0-9a-f]{32}|[0-9a-f]{32})", b"<folder>"),
    (rb"/tmp/[^\s\"':]*", b"<path>"),
)
# These headers follow from the body or the time.
_UNCOMPARED = frozenset({"content-length", "date", "server"})

# Python 3.13 renamed these phrases.
_NEWER_PHRASES = {
    "Content Too Large": "Request Entity Too Large",
    "Unprocessable Content": "Unprocessable Entity",
}

ADDED_FIELDS = frozenset(
    [
        "batching",
        "errors",
        "failedLoads",
        "failure",
        "largestBatch",
        "lastEnd",
        "nextTry",
        "nodes",
        "sequences",
    ]
)
"""Descriptions have these besides."""
ADDED_HEADERS = frozenset(
    {"allow", "retry-after", "server-timing", "x-batch-id", "x-batch-size", "x-content-type-options"}
)
"""Answers may have these besides: no client of TorchServe looks for them."""


def masked(answer: Response, *, by_handler: bool = False) -> Response:
    """The answer as it is compared and recorded.

    ``by_handler``: its body is what a model computed, where an id is not one of the server's, but for the id
    of the request.
    """
    body = answer.body or b""
    if by_handler and (own := answer.headers.get("x-request-id", "").encode()):
        body = body.replace(own, b"<uuid>")
    for pattern, mask in _MASKS_OF_HANDLERS if by_handler else (*_MASKS, *_MASKS_OF_HANDLERS):
        body = re.sub(pattern, mask, body)
    headers = {
        name: re.sub(_UUID, "<uuid>", value)
        for name, value in sorted(answer.headers.items())
        if name not in _UNCOMPARED
    }
    if "x-request-id" in headers:
        headers["x-request-id"] = "<uuid>"
    return replace(
        answer, reason=_NEWER_PHRASES.get(answer.reason, answer.reason), headers=headers, body=body
    )


def without_additions(body: bytes) -> bytes:
    """A description without the fields that TorchServe's do not have, a status without its warnings."""
    if body.startswith(b'{\n  "status": ') and b'\n  "warnings": [' in body:
        document = json.loads(body)
        del document["warnings"]
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    if not body.startswith((b'[\n  {\n    "modelName"', b'[\n  {\n    "workflowName"')):
        return body
    models = [{k: v for k, v in model.items() if k not in ADDED_FIELDS} for model in unmasked(body)]
    end = b"\n" if body.endswith(b"\n") else b""  # over gRPC there is none
    text = json.dumps(models, indent=2, ensure_ascii=False).encode() + end
    return re.sub(rb'("(?:pid|memoryUsage|gpu)": )"(<\w+>)"', rb"\1\2", text)


def unmasked(body: bytes) -> Any:
    """A masked body of JSON, with its masks as text. Raises ValueError for other bodies."""
    return json.loads(re.sub(rb'(": )(<\w+>)', rb'\1"\2"', body))


def _difference(expected: bytes, ours: bytes) -> str:
    reference, mine = (body.decode("utf-8", "backslashreplace").splitlines() for body in (expected, ours))
    if max(len(reference), len(mine)) < 8:
        return f"TorchServe {expected!r},\n      modelserver {ours!r}"
    return "\n    ".join(difflib.unified_diff(reference, mine, "TorchServe", "modelserver", lineterm="", n=1))


def mismatches(expected: Response, ours: Response) -> list[str]:
    """What is not the same, each in a line; both are masked."""
    lines = []
    if (expected.status, expected.reason) != (ours.status, ours.reason):
        one, other = (f"{each.status} {each.reason!r}" for each in (expected, ours))
        lines.append(f"status: TorchServe {one}, modelserver {other}")
    if expected.body is not None and expected.body != (body := without_additions(ours.body or b"")):
        lines.append("body: " + _difference(expected.body, body))
    for name in sorted({*expected.headers, *ours.headers} - ADDED_HEADERS):
        reference, mine = expected.headers.get(name), ours.headers.get(name)
        if reference != mine:
            lines.append(f"header {name}: TorchServe {reference!r}, modelserver {mine!r}")
    return lines
