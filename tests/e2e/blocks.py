"""The fenced blocks of the README and of the pages in docs/."""

import re
import textwrap
from collections import Counter
from dataclasses import dataclass

from tests.e2e.serving import ROOT

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
_FENCED = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$")


@dataclass(frozen=True, slots=True)
class Block:
    """One block; ``name`` is that of page and heading, the language, and its number among those."""

    name: str
    language: str
    text: str


def read_blocks() -> dict[str, Block]:
    """All of them, by name, in order."""
    result: dict[str, Block] = {}
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        numbers: Counter[str] = Counter()
        for each in _FENCED.finditer(text):
            heading = re.findall(r"(?m)^#+ (.*)$", _FENCED.sub("", text[: each.start()]))[-1]
            place = f"{page}: {heading}: {each['language']}"
            numbers[place] += 1
            name = f"{place} {numbers[place]}"
            result[name] = Block(name, each["language"], textwrap.dedent(each["text"]))
    return result


BLOCKS = read_blocks()


def of_language(*languages: str) -> list[Block]:
    return [block for block in BLOCKS.values() if block.language in languages]
