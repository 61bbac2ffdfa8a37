"""Lines in which TorchServe's workers report metrics."""

from __future__ import annotations

import pytest

from modelserver.engine.pools.printed_metrics import PrintedMetric, parse_metric

HOST = "#hostname:h,1700000000"


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        (
            f"[METRICS]Words.Count:2|#Kind:a,Level:Model|#type:COUNTER|{HOST},one,two",
            PrintedMetric("Words", 2.0, "Count", "counter", (("Kind", "a"), ("Level", "Model")), "one,two"),
        ),
        (
            f"INFO > [METRICS]Time taken.ms:-1.5e-3|#|#type:GAUGE|{HOST}",
            PrintedMetric("Time taken", -0.0015, "ms", "gauge", (), ""),
        ),
        (
            f"[METRICS]a.b.Count:1|#Url:http://x|#type:HISTOGRAM|{HOST},",
            PrintedMetric("a.b", 1.0, "Count", "histogram", (("Url", "http://x"),), ""),
        ),
        (f"[METRICS]n.:3|#a|#type:COUNTER|{HOST}", PrintedMetric("n", 3.0, "", "counter", (("a", ""),), "")),
    ],
)
def test_metrics(line: str, metric: PrintedMetric) -> None:
    """Name, unit, value, dimensions, type and request are those of the line (reference 15.4)."""
    assert parse_metric(line) == metric


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[METRICS]",
        "words",
        f"see [METRICS]n.Count:1|#|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|#type:SUMMARY|{HOST}",
        f"[METRICS]n.Count:1|#Kind:a|#type:counter|{HOST}",
        "[METRICS]n.Count:1|#Kind:a|#type:COUNTER",
        f"[METRICS]n.Count:word|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:nan|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS]n.Count:inf|#Kind:a|#type:COUNTER|{HOST}",
        f"[METRICS].Count:1|#Kind:a|#type:COUNTER|{HOST}",
        "[METRICS]Failed to update metric with name:n and dimensions: a with value: 1: why",
        "[METRICS]" + "a." * 4000,
        "[METRICS]" + "a" * 8000 + ".b:" * 50,
    ],
)
def test_other_lines(line: str) -> None:
    """What is no metric, to TorchServe neither, is left to the log."""
    assert parse_metric(line) is None
