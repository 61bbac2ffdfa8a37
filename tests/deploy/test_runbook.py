"""docs/runbook.md: a paragraph for each alert, finding of ``modelserver status`` and type of error."""

import re
from pathlib import Path

import pytest
import yaml
from docs.console_runbook import paragraphs

from modelserver.ext.events.records import KINDS

_ROOT = Path(__file__).parents[2]
_PARAGRAPHS = {anchor: text for anchor, _, text in paragraphs()}
_ALERTS = [
    rule
    for group in yaml.safe_load((_ROOT / "deploy" / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
_SERVER = _ROOT / "app" / "modelserver"
_TYPES = {
    name
    for path in _SERVER.rglob("*.py")
    if "tools" not in path.relative_to(_SERVER).parts
    for name in re.findall(r'"([A-Z]\w+Exception)"', path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("rule", _ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_leads_to_its_paragraph(rule):
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")

    assert (page, anchor) == ("docs/runbook.md", str(rule["alert"]).lower())
    assert len(_PARAGRAPHS[anchor]) > 100


def test_each_type_of_error_has_its_paragraph():
    assert len(_TYPES) > 15
    assert sorted(name for name in _TYPES if not _PARAGRAPHS.get(name.lower())) == []


def test_each_finding_has_its_paragraph():
    source = (_SERVER / "tools" / "status" / "command.py").read_text(encoding="utf-8")
    anchors = re.findall(r'"([a-z][a-z-]+)"\)$', source, re.MULTILINE)

    assert len(anchors) > 8
    assert sorted(anchor for anchor in anchors if not _PARAGRAPHS.get(anchor)) == []


def test_the_console_has_the_paragraphs():
    """Events lead to paragraphs that there are."""
    static = _SERVER / "ext" / "console" / "static"
    script = (static / "events.js").read_text(encoding="utf-8")
    table = script.partition("const ANCHORS = {")[2].partition("};")[0]
    kinds = dict(re.findall(r'(\w+): "([a-z-]+)"', table))

    assert len(kinds) > 8
    assert set(kinds) <= set(KINDS.values())
    assert set(kinds.values()) <= set(_PARAGRAPHS)
