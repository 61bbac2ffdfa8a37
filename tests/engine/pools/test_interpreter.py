import os
import subprocess
import sys

import pytest

from modelserver.engine.pools.interpreter import check_interpreter, worker_command
from modelserver.errors import ConfigError


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Removes PYTHONPATH, so that only installed packages can be imported."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_own_interpreter_is_used():
    """It finds the worker as a module, and needs no check."""
    assert worker_command(sys.executable) == [sys.executable, "-m", "modelserver.engine.worker"]
    check_interpreter(sys.executable)


def test_other_interpreter_needs_modelserver(bare):
    check_interpreter(str(bare))
    assert subprocess.run([bare, "-c", "import modelserver"], capture_output=True, check=False).returncode


@pytest.mark.parametrize("content", ["", "#!/bin/sh\nexit 3\n"])
def test_missing_python_is_refused(content, tmp_path):
    python = tmp_path / "python"
    if content:
        python.write_text(content)
        os.chmod(python, 0o700)

    with pytest.raises(ConfigError, match=f"^python={python}(:| cannot be run)"):
        check_interpreter(str(python))


def test_old_python_is_refused(old):
    with pytest.raises(ConfigError, match=f"^python={old}: it is Python 3.8, workers need 3.10 or newer$"):
        check_interpreter(str(old))
