"""What readers of docs/ can rely on: errors have an entry, pages of work say what comes next."""

import inspect
import re
import runpy
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest
from tests.deploy.test_runbook import _TYPES

import modelserver

_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"
_TROUBLE = (_DOCS / "troubleshooting.md").read_text(encoding="utf-8")
_MADE = re.findall(r"(?m)-m (docs\.\w+) > (\S+)$", (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
_SITE = (_DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8")
_MESSAGES = [
    text for row in re.findall(r"(?m)^\| (`[^|]*) \|", _TROUBLE) for text in re.findall(r"`([^`]+)`", row)
]
# The system's words, and those that are put together.
_NOT_IN_ONE_PIECE = {
    "Address already in use",
    "Invalid configuration: …=…: …",
    "Not served: …",
    "modelserver serve",
}
# Pages of lists, in which readers look up one thing, and those that have no such end yet.
_WITHOUT_END = {"runbook.md", "migrating.md", "console.md", "language-models.md", "many-models.md"}


def part_of_site(title):
    part = _SITE.partition(f"\n  - {title}:\n")[2]
    return re.findall(r"(?m)([\w-]+\.md)$", re.split(r"(?m)^  - ", part)[0])


@cache
def sources():
    """The code of the server, with the pieces of each text joined."""
    files = [path for folder in ("app", "handlers") for path in sorted((_ROOT / folder).rglob("*.py"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text).replace("{_MANIFEST}", "…")


def test_each_module_that_makes_a_text_has_its_command():
    makers = [path.stem for path in _DOCS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert sorted(module for module, _ in _MADE) == sorted(f"docs.{name}" for name in makers)


@pytest.mark.parametrize(("module", "file"), _MADE)
def test_text_is_what_its_module_makes(module, file, capsys):
    """The command in CONTRIBUTING.md was run after the last change."""
    runpy.run_path(str(_ROOT / f"{module.replace('.', '/')}.py"), run_name="__main__")
    is_current = (_ROOT / file).read_text(encoding="utf-8") == capsys.readouterr().out
    assert is_current, f"python -m {module} > {file}"


def test_each_type_of_error_leads_from_its_message_to_its_paragraph():
    entries = set(re.findall(r"\[`(\w+Exception)`\]\(runbook\.md#(\w+)\)", _TROUBLE))

    assert sorted(_TYPES - {name for name, _ in entries}) == []
    assert [name for name, anchor in entries if name.lower() != anchor] == []


@pytest.mark.parametrize("message", sorted({*_MESSAGES} - _NOT_IN_ONE_PIECE))
def test_messages_are_those_of_the_server(message):
    """A message that has changed must be found by its new words."""
    pieces = [piece.strip(" :'.") for piece in message.split("…")]
    assert [piece for piece in pieces if piece not in sources()] == []


def test_what_users_import_is_on_the_page_of_the_api():
    """Each name of the page can be imported, so it is described by its docstring."""
    page = (_DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"(?m)^::: ([\w.]+)$", page)

    assert {f"modelserver.{name}" for name in modelserver._PUBLIC} <= {*names}
    assert [name for name in names if not inspect.getdoc(resolve_name(name))] == []


@pytest.mark.parametrize("part", ["Tutorials", "How to"])
def test_pages_of_work_say_what_comes_next(part):
    pages = [name for name in part_of_site(part) if (_DOCS / name).is_file()]
    ends = {name: (_DOCS / name).read_text(encoding="utf-8").rstrip().rpartition("\n\n")[2] for name in pages}

    assert len(pages) > 2
    silent = {name for name, end in ends.items() if not end.startswith("**Next:** ")}
    assert sorted(silent - _WITHOUT_END) == []
