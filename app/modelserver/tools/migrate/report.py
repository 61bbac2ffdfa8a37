"""The report of a proof: one HTML file, the same as JSON, and a few lines for the terminal."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from itertools import chain
from typing import Any, Final

from modelserver.tools.migrate.calls import Probe, digest, readable
from modelserver.tools.migrate.changes import Rule, good
from modelserver.tools.migrate.proof import EXPLAINED, SAME, UNKNOWN, Compared, LoadFigures, Proof
from modelserver.tools.migrate.rules import OF_THE_RUN, RULES, VARIES
from modelserver.tools.migrate.servers import ServedVersion
from modelserver.tools.tune.figure import Figure
from modelserver.tools.tune.report import page, table

FORMAT: Final = 1
"""Grows when a key of the JSON changes its meaning or goes; new keys may come at any time."""
_LONG = 2000  # bytes of a body that is shown
_MOST_LINES = 20
_SECRET = re.compile(r"authorization|cookie|token|secret|api-key", re.IGNORECASE)
_VERDICTS = {
    SAME: "Both servers answer the same.",
    EXPLAINED: "The servers differ where they are known to, and nowhere else.",
    UNKNOWN: "There are differences without a known reason.",
}
_KINDS = {
    "endpoints": "Endpoints",
    "flags": "Flags",
    "keys": "Keys of the configuration",
    "handlers": "Handlers",
    "ts_names": "Names of ts",
}


def document(proof: Proof, facts: Mapping[str, str], config: str) -> dict[str, Any]:
    """The JSON. ``facts`` are of the machine and the versions."""
    return {
        "format": FORMAT,
        "verdict": proof.verdict,
        "configuration": config,
        "machine": dict(facts),
        "requests": {
            "asked": len(proof.compared),
            **{verdict: proof.count(verdict) for verdict in (SAME, EXPLAINED, UNKNOWN)},
            "left_out": proof.left_out,
        },
        "models": [{**_named(each.version), "url": each.version.url} for each in proof.subjects],
        "missing": [
            {**_named(each.version), "server": each.server, "why": each.why} for each in proof.missing
        ],
        "differences": [_difference(each) for each in proof.compared if each.verdict != SAME],
        "reasons": {
            rule.name: {"state": rule.verdict, "why": rule.why, "requests": count}
            for rule, count in _counted(proof)
        },
        "usage": {kind: [asdict(part) for part in parts] for kind, parts in proof.usage.items()},
        "figures": _figures(proof),
        "advice": [asdict(advice) for advice in proof.advice],
        "remarks": proof.remarks,
    }


def as_json(proof: Proof, facts: Mapping[str, str], config: str) -> str:
    """The JSON as text."""
    return json.dumps(document(proof, facts, config), indent=1, ensure_ascii=False) + "\n"


def _named(version: ServedVersion) -> dict[str, str]:
    return {"name": version.name, "version": version.version}


def _difference(each: Compared) -> dict[str, Any]:
    return {
        "request": _request(each.call),
        "torchserve": _shortened(each.reference.to_json(), each.reference.body),
        "modelserver": _shortened(each.ours.to_json(), each.ours.body),
        "what": list(each.what),
        "verdict": each.verdict,
        "reasons": [[rule.name for rule in rules] for rules in each.reasons],
    }


def _request(call: Probe) -> dict[str, Any]:
    """The request as JSON, without the values of secret headers."""
    headers = [[name, "********" if _SECRET.search(name) else value] for name, value in call.headers]
    return {"name": call.name, **call.to_json(), "headers": headers}


def _shortened(answer: dict[str, Any], body: bytes | None) -> dict[str, Any]:
    return answer if body is None or len(body) <= _LONG else {**answer, "body": digest(body)}


def _counted(proof: Proof) -> list[tuple[Rule, int]]:
    """The rules that explain something, in the order of the list, with the number of requests."""
    counts = Counter(rule.name for each in proof.compared for rule in dict.fromkeys(chain(*each.reasons)))
    return [(rule, counts[rule.name]) for rule in (*RULES, *OF_THE_RUN, VARIES) if counts[rule.name]]


def _figures(proof: Proof) -> dict[str, Any]:
    rest, grpc = (_latencies(proof, port) for port in ("inference", "grpc_inference"))
    return {
        "latency_ms": dict(zip(("torchserve", "modelserver"), rest, strict=True)),
        "grpc_latency_ms": dict(zip(("torchserve", "modelserver"), grpc, strict=True)),
        "memory_bytes": dict(zip(("torchserve", "modelserver"), proof.memory, strict=True)),
        "start_seconds": dict(zip(("torchserve", "modelserver"), proof.start, strict=True)),
        "load": [
            {
                "model": each.model,
                "request": each.request,
                "server": each.server.lower(),
                "alone": _figure(each.alone),
                "full": _figure(each.full),
            }
            for each in proof.measured
        ],
    }


def _latencies(proof: Proof, port: str) -> list[float | None]:
    """Both medians of the predictions that both answered with success, one at a time."""
    times = [
        each.milliseconds
        for each in proof.compared
        if each.call.port == port and good(each.reference) and good(each.ours)
    ]
    if not times:
        return [None, None]
    return [round(statistics.median(each), 3) for each in zip(*times, strict=True)]


def _figure(figure: Figure) -> dict[str, Any]:
    if figure.void:
        return {"clients": figure.clients, "failed": figure.reason()}
    numbers = {"requests_per_second": figure.rate, "p50_ms": figure.p50_ms, "p99_ms": figure.p99_ms}
    return {"clients": figure.clients, **{name: round(number, 3) for name, number in numbers.items()}}


def summary(proof: Proof) -> list[str]:
    """Lines for the terminal."""
    counts = f"{len(proof.compared)} requests: {proof.count(SAME)} answered the same, "
    lines = [
        counts + f"{proof.count(EXPLAINED)} differ as explained, {proof.count(UNKNOWN)} for unknown reasons",
        *map(_missing_text, proof.missing),
    ]
    unknown = [f"unknown: {each.summary_line}" for each in proof.compared if each.verdict == UNKNOWN]
    lines += unknown[:_MOST_LINES]
    if len(unknown) > _MOST_LINES:
        lines.append(f"and {len(unknown) - _MOST_LINES} more, see the report")
    change = [f"change: {advice.text}" for advice in proof.advice[:-1]]  # the last one is the start
    return [*lines, *change, _VERDICTS[proof.verdict]]


def _missing_text(each: Any) -> str:
    return f"{each.version.name} {each.version.version} is not served by {each.server}: {each.why}"


# HTML


def as_html(proof: Proof, facts: Mapping[str, str], config: str) -> str:
    """The page; everything from outside is escaped."""
    style = ' class="miss"' if proof.verdict == UNKNOWN else ""
    why = f" {proof.left_out} were left out, as they would change what the running TorchServe serves."
    left_out = why if proof.left_out else ""
    body = [
        "<h1>From TorchServe to modelserver</h1>",
        f"<p>{escape(config)}</p>",
        f"<p{style}><strong>{escape(_VERDICTS[proof.verdict])}</strong></p>",
        *(f'<p class="miss">{escape(_missing_text(each))}</p>' for each in proof.missing),
        f"<p>{escape(summary(proof)[0])}.{left_out}</p>",
        *(f"<p>{escape(remark)}</p>" for remark in proof.remarks),
        *_unknown(proof),
        "<h2>What to change</h2>",
        *(
            f"<p>{escape(advice.text)}</p>"
            + (f"<pre>{escape(chr(10).join(advice.commands))}</pre>" if advice.commands else "")
            for advice in proof.advice
        ),
        "<h2>Differences with a reason</h2>",
        table(
            ("reason", "state", "requests"),
            [(rule.why, rule.verdict, str(count)) for rule, count in _counted(proof)],
            "words",
        ),
        *_details(each for each in proof.compared if each.verdict == EXPLAINED),
        "<h2>Figures</h2>",
        *_measured(proof),
        *_used(proof),
        "<h2>Machine</h2>",
        f'<p class="soft">{escape(", ".join(f"{name} {fact}" for name, fact in facts.items()))}</p>',
    ]
    return page("From TorchServe to modelserver", body)


def _unknown(proof: Proof) -> list[str]:
    unknown = [each for each in proof.compared if each.verdict == UNKNOWN]
    return ["<h2>Differences without a known reason</h2>", *_details(unknown, opened=True)] if unknown else []


def _details(compared: Iterable[Compared], *, opened: bool = False) -> list[str]:
    """An element to open for each request."""
    elements, state = [], " open" if opened else ""
    for each in compared:
        differences = "\n".join(each.what)
        reasons = "; or: ".join(", ".join(rule.name for rule in rules) for rules in each.reasons)
        text = "\n".join(
            (
                f"{each.call.method} {each.call.path} ({each.call.port})",
                *(f"{name}: {value}" for name, value in _request(each.call)["headers"]),
                _text(each.call.body),
                "",
                differences,
            )
        )
        head = escape(each.call.name) + (f" <small>{escape(reasons)}</small>" if reasons else "")
        elements.append(f"<details{state}><summary>{head}</summary><pre>{escape(text)}</pre></details>")
    return elements


def _text(body: bytes) -> str:
    text = readable(body[:_LONG])
    return text if isinstance(text, str) else f"({len(body)} bytes)"


def _measured(proof: Proof) -> list[str]:
    rows = [
        (f"median of the requests{by}, one at a time", *(_number(each, "ms") for each in medians))
        for by, port in (("", "inference"), (" over gRPC", "grpc_inference"))
        if any(medians := _latencies(proof, port)) or not by
    ]
    rows += [
        ("memory", *(_number(size and size / 2**20, "MiB") for size in proof.memory)),
        ("start, until all models are loaded", *(_number(seconds, "s") for seconds in proof.start)),
    ]
    head = ("model", "server", "clients", "requests/s", "p50 ms", "p99 ms")
    load = [row for each in proof.measured for row in (_row(each, each.alone), _row(each, each.full))]
    return [
        table(("", "TorchServe", "modelserver"), rows, "words"),
        table(head, load, "words") if load else "",
    ]


def _row(each: LoadFigures, figure: Figure) -> tuple[str, ...]:
    if figure.void:
        return (each.model, each.server, str(figure.clients), figure.reason(), "", "")
    numbers = (figure.rate, figure.p50_ms, figure.p99_ms)
    return (each.model, each.server, str(figure.clients), *(f"{number:.4g}" for number in numbers))


def _number(value: float | None, unit: str) -> str:
    return "not known" if value is None else f"{value:.4g} {unit}"


def _used(proof: Proof) -> list[str]:
    head, elements = ("name", "state", "remark", "where"), []
    for kind, parts in proof.usage.items():
        if parts:
            rows = [(part.name, part.state, part.remark, part.where) for part in parts]
            elements += [f"<h2>{_KINDS[kind]} in use</h2>", table(head, rows, "words")]
    return elements
