"""What a model's code imports and requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.engine.wire.probing import SourceLine
from modelserver.tools.doctor.packages import Import, distribution_of, imports_of, missing

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = """
import json, os.path
import helper
from typing import TYPE_CHECKING
import sklearn.svm as svm, yaml
from . import beside
from httpx import Client

if TYPE_CHECKING:
    import pandas
try:
    import ujson
except ImportError:
    ujson = None
try:
    import psutil
finally:
    pass


def handle(data, context) -> "Client":
    import captum
    return svm, os
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder."""
    (tmp_path / "handler.py").write_text(_SOURCE)
    (tmp_path / "helper.py").write_text("import handler\n")
    (tmp_path / "broken.py").write_text("def\n")
    return tmp_path


def test_imports(folder: Path) -> None:
    """They are those that the code cannot do without, with their lines, and whether they are used."""
    imports = {each.package: each for each in imports_of(folder)}

    assert imports == {
        "json": Import("json", SourceLine("handler.py", 2), used=False),
        "os": Import("os", SourceLine("handler.py", 2), used=True),
        "typing": Import("typing", SourceLine("handler.py", 4), used=True),
        "sklearn": Import("sklearn", SourceLine("handler.py", 5), used=True),
        "yaml": Import("yaml", SourceLine("handler.py", 5), used=False),
        "httpx": Import("httpx", SourceLine("handler.py", 7), used=True),
        "psutil": Import("psutil", SourceLine("handler.py", 16), used=False),
        "captum": Import("captum", SourceLine("handler.py", 22), used=False),
    }


@pytest.mark.parametrize(
    ("requirements", "absent"),
    [
        (None, ["sklearn", "httpx", "psutil", "captum"]),
        ("scikit_learn>=1  # for one\nhttpx[http2]\n\n-r more.txt\n", ["psutil", "captum"]),
        (
            "git+https://host/psutil.git@v1\nhttps://host/x.whl#egg=captum\nHTTPX @ https://host/h",
            ["sklearn"],
        ),
    ],
)
def test_missing(folder: Path, requirements: str | None, absent: list[str]) -> None:
    """Neither Python's own, nor the server's and torch's, nor what is required by its name on the index."""
    assert list(missing(imports_of(folder), requirements)) == absent


def test_names_on_the_index() -> None:
    """Packages are installed by other names than they are imported by."""
    assert [distribution_of(name) for name in ("yaml", "unknown_one")] == ["PyYAML", "unknown_one"]
