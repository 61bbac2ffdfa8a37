"""The report: one HTML file with everything in it, the curve as a PNG, and the figures as JSON."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module

import msgspec

from modelserver.tools.tune.config_file import sustained_text
from modelserver.tools.tune.figure import Figure
from modelserver.tools.tune.goal import Point
from modelserver.tools.tune.machine import USED_BY_OTHERS
from modelserver.tools.tune.svg import Chart, Series, draw
from modelserver.tools.tune.tuner import TuningResult, clients_text

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #666d75; --rule: #d9dde2; --paper: #fff;
  --one: #0b63b8; --two: #b8500b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --soft: #9aa2ab; --rule: #3a4048;
  --paper: #16191c; --one: #6db3f8; --two: #f3a35c; --bad: #f2877f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.chosen { font-weight: 600; }
.miss { color: var(--bad); }
table.words th, table.words td { text-align: left; vertical-align: top; white-space: normal; }
pre { background: color-mix(in srgb, var(--ink) 6%, var(--paper)); padding: .8rem; overflow-x: auto; }
svg { width: 100%; height: auto; max-width: 680px; } svg text { font-size: 12px; fill: var(--soft); }
svg .grid { stroke: var(--rule); } svg polyline { fill: none; stroke-width: 2; }
svg circle.one { fill: var(--one); } svg polyline.one { stroke: var(--one); }
svg circle.two { fill: var(--two); } svg polyline.two { stroke: var(--two); }
svg circle.other { fill: var(--soft); opacity: .55; }
svg line.limit { stroke: var(--bad); stroke-dasharray: 5 4; }
svg text.limit { fill: var(--bad); } .soft { color: var(--soft); }
"""


def html_report(title: str, result: TuningResult, facts: Mapping[str, str], config: str, use: str) -> str:
    """The page; all external text is escaped. ``use``: how to use the configuration."""
    chosen = result.choice
    met = ": kept" if result.goal.kind == "limit" else ""
    verdict = met if result.met else ': <span class="miss">not met</span>, the best result is below'
    factor = gain(result)
    words = "times the throughput of batch size 1 with one worker"
    gained = "" if factor is None else f", {factor:.2f} {words}"
    body = [
        f"<h1>Tuning of {escape(title)}</h1>",
        *_warning(facts),
        f"<p>Goal <strong>{escape(result.goal.text)}</strong>{verdict}.</p>",
        (
            f"<p><strong>{escape(str(chosen.setting))}</strong>: {escape(result.goal.text_of(chosen.figure))}"
            f"{gained}.</p>"
        ),
        f"<p>{escape(sustained_text(result))}</p>",
        "<h2>Latency and throughput</h2>",
        draw(curve_chart(result)),
        '<p class="soft">Each point of the curve is a closed loop with the number of clients below it.</p>',
        "<h2>What a batch costs</h2>",
        *_costs(result),
        "<h2>What was measured</h2>",
        _table(result),
        *(f"<p>{escape(remark)}</p>" for remark in result.remarks),
        "<h2>model-config.yaml</h2>",
        f"<pre>{escape(config)}</pre>",
        f"<p>To use it:</p><pre>{escape(use)}</pre>",
        "<h2>Machine</h2>",
        (
            f'<p class="soft">{escape(", ".join(f"{name} {fact}" for name, fact in facts.items()))}. '
            f"It took {result.seconds:.0f} s; the clients ran on the same machine.</p>"
        ),
    ]
    return page(f"Tuning of {title}", body)


def page(title: str, body: Sequence[str]) -> str:
    """A whole HTML file with the elements of ``body``, for light and dark; needs nothing from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts, which are escaped; ``kind``: its class."""
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return table_of(heads, (f"<tr>{row}</tr>" for row in cells), kind)


def table_of(heads: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table whose rows are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    made = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="scroll">{made}</div>'


def _warning(facts: Mapping[str, str]) -> list[str]:
    used = facts.get(USED_BY_OTHERS)
    if used is None:
        return []
    text = f"Other programs used {used} of the CPUs before the start, which affects the figures."
    return [f'<p class="miss"><strong>{escape(text)}</strong></p>']


def curve_chart(result: TuningResult) -> Chart:
    """Latency over throughput of the choice, and the other measurements."""
    curve = sorted(result.curve, key=lambda figure: figure.clients or 0)
    percentile = result.goal.percentile
    others = [p for p in result.points if not p.figure.void and p.setting != result.choice.setting]
    labels = [f"{clients_text(figure.clients or 1)}: {result.goal.text_of(figure)}" for figure in curve]
    clients = [str(figure.clients) for figure in curve]
    series = [
        Series(
            "p50 of the choice, with the number of clients",
            [(f.rate, f.p50_ms) for f in curve],
            "one",
            labels=labels,
            marks=clients,
        ),
        Series(
            f"other settings, {percentile}",
            [(p.figure.rate, result.goal.latency(p.figure)) for p in others],
            "other",
            line=False,
            labels=[f"{p.setting}: {result.goal.text_of(p.figure)}" for p in others],
        ),
    ]
    if percentile != "p50":
        points = [(f.rate, result.goal.latency(f)) for f in curve]
        series.insert(1, Series(f"{percentile} of the choice", points, "two", labels=labels))
    return Chart(
        "Latency over throughput",
        "requests per second",
        "latency, ms",
        [each for each in series if each.points],
        result.goal.limit_ms,
        result.goal.text,
    )


def curve_png(result: TuningResult) -> bytes | None:
    """The curve as a picture; None without matplotlib."""
    try:
        backend = import_module("matplotlib.backends.backend_agg")
        figures = import_module("matplotlib.figure")
    except ImportError:
        return None
    chart = curve_chart(result)
    canvas = figures.Figure(figsize=(8, 4.6), layout="constrained")
    axes = canvas.add_subplot()
    for series in chart.series:
        marks = {"one": "o-", "two": "s-"}.get(series.style, ".")
        axes.plot([x for x, _ in series.points], [y for _, y in series.points], marks, label=series.name)
        for text, point in zip(series.marks, series.points, strict=True) if series.marks else ():
            axes.annotate(text, point, xytext=(0, -14), textcoords="offset points", ha="center", fontsize=8)
    if chart.limit is not None:
        axes.axhline(chart.limit, linestyle="--", color="tab:red", label=chart.limit_name)
    axes.set(xlabel=chart.x_name, ylabel=chart.y_name, title=chart.title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    backend.FigureCanvasAgg(canvas).print_png(file)
    return file.getvalue()


def results_json(title: str, result: TuningResult, facts: Mapping[str, str]) -> str:
    """All figures; NaN as null."""
    line = result.costs.line
    document = {
        "model": title,
        "goal": result.goal,
        "met": result.met,
        "machine": facts,
        "seconds": round(result.seconds, 1),
        "choice": result.choice,
        "gain": gain(result),
        "sustained": result.sustained,
        "cost": {
            "line": line if line is not None and line.worth_telling else None,
            "handler_ms": result.costs.handler_ms,
            "left_out": result.costs.pruned,
        },
        "points": result.points,
        "proofs": result.proofs,
        "curve": result.curve,
        "remarks": result.remarks,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def gain(result: TuningResult) -> float | None:
    """The throughput of the choice relative to batch size 1 with one worker."""
    base = result.baseline
    return None if base is None or not base.figure.rate else result.choice.figure.rate / base.figure.rate


def _costs(result: TuningResult) -> list[str]:
    costs, line = result.costs.handler_ms, result.costs.line
    series = [
        Series(
            "measured",
            list(costs.items()),
            "one",
            line=False,
            labels=[f"{n}: {t:.4g} ms" for n, t in costs.items()],
        )
    ]
    if line is not None and line.worth_telling:
        ends = (min(costs), max(costs))
        series.append(Series(f"{line}", [(n, max(0.0, line.at(n))) for n in ends], "two"))
    chart = Chart(
        "Cost of a batch", "batch size", "handler, ms", series, result.goal.limit_ms, result.goal.text
    )
    left_out = "".join(f"<li>{escape(text)}</li>" for text in result.costs.pruned)
    return [draw(chart), f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else ""]


def _table(result: TuningResult) -> str:
    times = (f"{name} ms" for name in ("p50", "p90", "p99", "queue", "handler"))
    heads = ["setting", "clients", "requests/s", *times, "mean batch"]
    rows = [_row(point, result) for point in result.points]
    rows += [_row(point, result, proof=True) for point in result.proofs]
    return table_of(heads, rows)


def _row(point: Point, result: TuningResult, *, proof: bool = False) -> str:
    name = escape(f"{point.setting}{' (proof)' if proof else ''}")
    figure = point.figure
    if figure.void:
        return f'<tr><td>{name}</td><td colspan="8" class="miss">{escape(figure.reason())}</td></tr>'
    kind = ' class="chosen"' if point is result.chosen else ""
    values = "".join(f"<td>{value}</td>" for value in _cells(figure))
    miss = "" if result.goal.met(figure) else ' <span class="miss">misses the goal</span>'
    return f"<tr{kind}><td>{name}{miss}</td>{values}</tr>"


def _cells(figure: Figure) -> list[str]:
    values = (figure.rate, figure.p50_ms, figure.p90_ms, figure.p99_ms, figure.queue_ms, figure.inference_ms)
    return [str(figure.clients or ""), *(f"{value:.4g}" for value in values), f"{figure.mean_batch:.3g}"]
