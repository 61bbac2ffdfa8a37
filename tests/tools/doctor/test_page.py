"""docs/check.md as it stands: its handler gets the report that is shown, and its tests find the fault."""

import os
import subprocess
import sys

import pytest
from tests.e2e.blocks import BLOCKS

from modelserver.__main__ import main

pytestmark = pytest.mark.slow

_HANDLER = BLOCKS["docs/check.md: What it finds: python 1"].text
_TEXT = BLOCKS["docs/check.md: What it finds: console 1"].text
_TESTS = BLOCKS["docs/check.md: A client for tests of your own: python 1"].text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handler.py").write_text(_HANDLER)
    (tmp_path / "prices.json").write_text('{"apple": 1.5, "pear": 0.5}')
    for name, article in (("a", "apple"), ("b", "pear")):
        (tmp_path / f"{name}.json").write_text(f'{{"article": "{article}"}}')
    return tmp_path


def test_the_pages_report_is_printed(folder, capsys):
    command, _, display = _TEXT.partition("\n")

    assert main(command.split()[2:]) == 1
    printed = capsys.readouterr().out
    assert printed.partition("\nadvice ")[0].partition("\nload ")[0] == display.partition("\nadvice ")[0]


def test_the_pages_tests_are_true(folder):
    assert run(folder) == "1 failed, 2 passed"
    (folder / "handler.py").write_text(_HANDLER.replace("sorted(answers)", "answers"))
    assert run(folder) == "3 passed"


def run(folder):
    (folder / "test_prices.py").write_text(_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_prices.py"],
        cwd=folder,
        # The plugins of these tests would take longer than the test.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout.splitlines()[-1].partition(" in ")[0]
