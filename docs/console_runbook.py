"""The paragraphs of docs/runbook.md for the console, which shows them beside events.

``python -m docs.console_runbook > app/modelserver/ext/console/static/runbook.js`` makes them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNBOOK = Path(__file__).parent / "runbook.md"

_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def paragraphs(least: int = 2) -> Iterator[tuple[str, str, str]]:
    """The anchor, title and text of each; ``least``: how many ``#`` a title has."""
    text = RUNBOOK.read_text(encoding="utf-8")
    for title, content in re.findall(rf"^#{{{least},3}} (.+)\n((?:(?!#).*\n)*)", text, re.MULTILINE):
        yield re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-"), title, content.strip()


def module() -> str:
    """By their anchors; links are texts, and code stays between backticks."""
    values = {
        anchor: [title, " ".join(_LINK.sub(r"\1", text).split())]
        for anchor, title, text in paragraphs(least=3)
    }
    content = json.dumps(values, indent=1, ensure_ascii=False)
    return (
        f"// Made by docs/console_runbook.py from docs/runbook.md.\n\nexport const PARAGRAPHS = {content};\n"
    )


if __name__ == "__main__":
    sys.stdout.write(module())
