import re
from pathlib import Path

from modelserver.tools.doctor.findings import KINDS, Finding


def test_kinds_say_what_to_do():
    assert {kind.level for kind in KINDS.values()} == {"error", "warning", "advice"}
    assert [name for name, kind in KINDS.items() if not kind.why.endswith(".")] == []
    assert [name for name, kind in KINDS.items() if not kind.instead] == ["batch-cost"]
    assert Finding("batch-cost", "seen", advice="Do this.").instead == "Do this."


def test_the_page_lists_them():
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text("utf-8")
    rows = dict(re.findall(r"(?m)^\| `([a-z-]+)` \| (\w+) \|", page))

    assert rows == {name: kind.level for name, kind in KINDS.items()}
