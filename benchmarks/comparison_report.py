"""One work of the comparison as text and as JSON."""

from __future__ import annotations

from dataclasses import fields

from benchmarks.measure import Figure, figures, of, ratio
from benchmarks.peers.launch import SUBJECTS
from benchmarks.report import failure_lines, noise_lines, number, table
from benchmarks.side_by_side import EAGER_LOOPS, LOOP, LOOPS, Result, medians
from benchmarks.targets import best_loop

# The subjects that ratios are taken to, where they were run.
BASES = {"echo": "to echo", "torchserve": "to TorchServe", "torchserve-quiet": "to its logs off"}


def work_text(result: Result) -> str:
    """The heading and the tables of what was measured, and why figures are void or missing."""
    parts = [f"## {result.work.title} (`{result.work.name}`)"]
    if result.samples:
        parts.append(_rates(result))
    if result.half:
        parts += ["At half of each one's own largest rate:", _halves(result)]
    if result.lone:
        parts += ["The handler's own time, and what is added to it:", _lone(result)]
    if result.starts:
        parts += ["Start and memory:", _starts(result)]
    summary = [*figures(result.samples), *figures(result.half)]
    remarks = [*failure_lines(summary), *noise_lines(summary)]
    remarks += [f"cannot start: {name}: {_last_line(why)}" for name, why in result.refusals.items()]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts) + "\n"


def _rates(result: Result) -> str:
    unit = "images/s" if result.work.kind == "resnet" else "requests/s"
    headers = ["server", "connections", unit, "p50 ms", "p99 ms", "CPU-µs/request"]
    summary = figures(result.samples)
    bases = [base for base in BASES if any(each.subject == base for each in summary)]
    loop = _loop_of(result)
    rows = []
    for each in summary:
        text = [*map(number, each.values)] if each.connections else [number(each.rate), "", "", ""]
        against = [_against(result, each, base, each.connections) for base in bases]
        against += [_against(result, each, loop, 0)] if loop else []
        name = _title(each.subject)
        rows.append([name, str(each.connections) if each.connections else "", *text, *against])
    return table([*headers, *(BASES[base] for base in bases), *(["to best loop"] if loop else [])], rows)


def _against(result: Result, figure: Figure, base: str, connections: int) -> str:
    if not figure.connections and not base.startswith(LOOP):
        return ""
    return number(ratio(result.samples, of(figure.subject, figure.connections), of(base, connections)))


def _loop_of(result: Result) -> str | None:
    """The loop that ratios are taken to: the best that computes fp32 without a compiler."""
    kinds = EAGER_LOOPS if result.work.kind == "resnet" else LOOPS[result.work.kind]
    return best_loop(result, kinds)


def _halves(result: Result) -> str:
    summary = figures(result.half)
    rows = [[_title(each.subject), *map(number, each.values)] for each in summary]
    return table(["server", "requests/s", "p50 ms", "p99 ms", "CPU-µs/request"], rows)


def _lone(result: Result) -> str:
    rows = [
        [_title(name), *map(number, (each.client_p50_ms, each.handler_p50_ms, each.added_ms))]
        for name, each in result.lone.items()
    ]
    return table(["server", "client p50 ms", "handler p50 ms", "added ms"], rows)


def _starts(result: Result) -> str:
    headers = ["server", "listening s", "ready s", "first answer s", "RSS MB", "PSS MB", "processes"]
    rows = []
    for name, taken in result.starts.items():
        start = medians(taken)
        cells = [number(value) for value in (start.listening_s, start.ready_s, start.answer_s)]
        if result.memory.get(name):
            memory = medians(result.memory[name])
            cells += [number(memory.rss_mb), number(memory.pss_mb), f"{memory.processes:.0f}"]
        else:
            cells += ["", "", ""]
        rows.append([_title(name), *cells])
    return table(headers, rows)


def _title(name: str) -> str:
    return SUBJECTS[name].title if name in SUBJECTS else name


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[0]} ... {lines[-1]}" if len(lines) > 1 else "".join(lines)


def work_document(result: Result) -> dict[str, object]:
    """A work for JSON: the figures, and the samples that they and the ratios are made of."""
    measured = {field.name: getattr(result, field.name) for field in fields(result)}
    return {**measured, "figures": figures(result.samples), "half_load": figures(result.half)}
