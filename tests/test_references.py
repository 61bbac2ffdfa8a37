"""What comments and docstrings cite can be looked up: each section and fault stands in docs/reference."""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_PAGES = _ROOT / "docs" / "reference"
_FOLDERS = ("app", "handlers", "tests", "benchmarks", "docs", "examples", "deploy")

_NUMBERS = r"\d+(?:\.\d+)?(?:(?:, and|,| and| to) \d+(?:\.\d+)?)*"
# reference 5.3 · Reference 12.1 and 12.4 · kserve reference, 1 and 4 · design 7 · design, section 9, "Rows"
_SECTION = re.compile(
    rf"\b(?P<word>kserve reference|reference|design)(?:'s)?,? (?:section )?(?P<numbers>{_NUMBERS})"
    r"(?:, \"(?P<part>[^\"]+)\")?",
    re.IGNORECASE,
)
_PAGE = {"reference": "torchserve", "kserve reference": "kserve", "design": "decisions"}
# A section without its page; within a page, it is one of that page.
_LOOSE = re.compile(rf"\b(?:sections?|kserve) (?P<numbers>{_NUMBERS})", re.IGNORECASE)
_FAULTS = re.compile(r"\bF(\d{1,2})\b|\bfaults? (\d{1,2}\b(?:(?:, | to )\d{1,2}\b)*)")


@dataclass(frozen=True, slots=True)
class Page:
    """The numbers of a page's sections, each with the names of the parts that have no number."""

    sections: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, text):
        page, number = cls(), ""
        for result, name in re.findall(r"(?m)^##+ (?:(\d+(?:\.\d+)?)\.? )?(.+)$", text):
            number = result or number
            page.sections.setdefault(number, set()).update(() if result else (name,))
        return page

    def has(self, number, part=None):
        return number in self.sections and (part is None or part in self.sections[number])


@cache
def page(name):
    return Page.of((_PAGES / f"{name}.md").read_text(encoding="utf-8"))


@cache
def faults():
    return {int(n) for n in re.findall(r"(?m)^\| F(\d+) \|", (_PAGES / "faults.md").read_text("utf-8"))}


def joined(text):
    """The text without line ends, and without what begins a line of comment."""
    return re.sub(r"\s*\n\s*(?:#|//)?\s*", " ", text)


def numbers_of(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def unresolved(text):
    """The citations in a text that lead nowhere."""
    text = joined(text)
    for cited in _SECTION.finditer(text):
        target = page(_PAGE[cited["word"].lower()])
        if not all(target.has(number, cited["part"]) for number in numbers_of(cited["numbers"])):
            yield cited[0]
    yield from (cited[0] for cited in _LOOSE.finditer(_SECTION.sub("", text)))
    for one, several in _FAULTS.findall(text):
        yield from (f"F{number}" for number in numbers_of(one or several) if int(number) not in faults())


def sources():
    """All code, tests and interface files of the repository, but for this one."""
    result = [path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*")]
    return sorted(p for p in result if p.suffix in {".py", ".proto", ".yaml"} and p != Path(__file__))


def test_citations_lead_somewhere():
    strays = {
        str(path.relative_to(_ROOT)): lost
        for path in sources()
        if (lost := list(unresolved(path.read_text(encoding="utf-8"))))
    }

    assert strays == {}


@pytest.mark.parametrize("name", ["torchserve", "kserve", "faults", "decisions"])
def test_pages_lead_on(name):
    text = joined((_PAGES / f"{name}.md").read_text(encoding="utf-8").partition("\n## ")[2])
    of_others = re.findall(rf"(torchserve|kserve)\.md ({_NUMBERS})", text)
    own = [cited["numbers"] for cited in _LOOSE.finditer(_SECTION.sub("", text)) if cited[0][0] in "sS"]

    assert [c[0] for c in _SECTION.finditer(text) if list(unresolved(c[0]))] == []
    assert [number for numbers in own for number in numbers_of(numbers) if not page(name).has(number)] == []
    assert [c for c in of_others if not all(page(c[0]).has(number) for number in numbers_of(c[1]))] == []


@pytest.mark.parametrize(
    "text",
    [
        "(reference 99)",
        "Reference 5.2, 5.99",
        "the reference\n    # 8.99)",
        "kserve reference, 1 and 99",
        "(reference 9; kserve 1.7)",
        "design, section 99",
        'the design\'s section 9, "Nothing"',
        "section 9 of the reference",
        "(F99)",
        "faults 38 to 99",
    ],
)
def test_what_leads_nowhere_is_seen(text):
    """A section, a part or a fault that is not there is found in every form, and so is one of no page."""
    assert list(unresolved(text))


@pytest.mark.parametrize(
    "text",
    [
        "(reference 5.2, 10.3, 10.4)",
        "torchserve reference, section 20.",
        "(kserve reference 2.2, 5, 6 and 9; F1 to F4)",
        '(design 9, "Rows"): 4',
        "a row of 99, 100 of them",
    ],
)
def test_existing_things_are_listed(text):
    assert list(unresolved(text)) == []
