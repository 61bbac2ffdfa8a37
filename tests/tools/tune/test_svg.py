import math
import xml.etree.ElementTree as ET

import pytest

from modelserver.tools.tune.report import curve_chart
from modelserver.tools.tune.svg import Chart, Series, draw, ticks


def test_the_chart_shows_series_clients_and_limit(result):
    chart = curve_chart(result)
    root = ET.fromstring(draw(chart))
    kinds = [element.tag for element in root]
    texts = [element for element in root if element.tag == "text"]
    marks = [element.text for element in texts if element.get("class") == "mark"]

    assert {series.name for series in chart.series} <= {element.text for element in texts}
    assert marks == [str(figure.clients) for figure in result.curve]

    assert kinds.count("polyline") == 2
    assert [e.text for e in root if e.get("class") == "limit" and e.text] == ["p99<=70ms"]
    assert kinds.count("circle") > len(result.curve)


def test_a_chart_without_points_can_be_drawn():
    empty = ET.fromstring(draw(Chart("t", "x", "y", [])))
    odd = ET.fromstring(draw(Chart("t", "x", "y", [Series("s", [(1.0, math.nan), (1.0, 2.0)], "one")])))

    assert [e.tag for e in empty].count("circle") == 0
    assert [e.tag for e in odd].count("circle") == 2


@pytest.mark.parametrize("largest", [0.003, 0.7, 1.0, 6.0, 99.0, 100.0, 12345.0])
def test_ticks_are_few_and_reach_the_largest(largest):
    """They begin at 0 and are equally far from each other."""
    matches = ticks(largest)

    assert matches[0] == 0.0
    assert matches[-1] >= largest * (1 - 1e-9)
    assert 3 <= len(matches) <= 8
