import json
from html.parser import HTMLParser
from importlib.util import find_spec

import pytest

from modelserver.tools.tune.figure import void
from modelserver.tools.tune.goal import ModelSetting, Point
from modelserver.tools.tune.machine import USED_BY_OTHERS
from modelserver.tools.tune.report import curve_png, html_report, results_json

EVIL = '<script>alert("x")</script>&'


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.names = []
        self.addresses = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def page(result, title="model"):
    return html_report(title, result, {"processor": EVIL}, f"# {EVIL}\n", f"use {EVIL}")


def test_names_from_outside_are_escaped(result):
    result.points.append(Point(ModelSetting(2), void(EVIL)))
    result.remarks.append(EVIL)
    html = page(result, EVIL)
    tags = Tags()
    tags.feed(html)

    assert "script" not in tags.names
    assert EVIL not in html
    assert html.count("&lt;script&gt;") >= 5
    assert tags.addresses == []
    assert tags.names.count("svg") == 2


def test_the_page_has_goal_machine_and_line(result):
    """A busy machine stands right below the title; a line through two points is neither drawn nor written."""
    html = page(result)
    assert ">p99&lt;=70ms</strong>: kept." in html
    assert "Other programs" not in html
    busy = html_report("model", result, {USED_BY_OTHERS: "40 %"}, "", "")
    assert '</h1>\n<p class="miss"><strong>Other programs used 40 % of the CPUs' in busy
    result.met = False
    result.costs.handler_ms = {1: 22.0, 2: 24.0}
    html = page(result)

    assert "not met" in html
    assert "*n ms" not in html
    assert json.loads(results_json("model", result, {}))["cost"]["line"] is None


def test_the_results_are_json(result):
    result.points.append(Point(ModelSetting(2), void("status 503")))
    document = json.loads(results_json("model", result, {"cores": "2"}))

    assert document["met"] is True
    assert document["choice"]["setting"]["batch_size"] == result.choice.setting.batch_size
    assert document["cost"]["line"]["b_ms"] == pytest.approx(2.0)
    assert document["gain"] > 1
    assert document["points"][-1]["figure"]["p99_ms"] is None


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_curve_is_a_picture_where_matplotlib_is(result):
    assert (curve_png(result) or b"").startswith(b"\x89PNG")
