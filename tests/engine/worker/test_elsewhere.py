import ast
import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from modelserver.engine.pools.interpreter import check_interpreter, worker_command
from modelserver.engine.worker import elsewhere
from modelserver.errors import ConfigError

SHOW = """
import modelserver, modelserver_handlers, sys
print(modelserver.__file__, modelserver_handlers.__file__, sys.path)
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Removes PYTHONPATH, so that only installed packages can be imported."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_the_servers_packages_are_used(bare):
    (packages,) = bare.parent.parent.glob("lib/python*/site-packages")
    (packages / "modelserver.py").write_text("raise ImportError('another version')")
    (packages / "shows_what_is_there.py").write_text(SHOW)
    command = worker_command(str(bare))
    command[2] = "shows_what_is_there"
    try:
        output = subprocess.run([*command, "3"], capture_output=True, text=True, check=True, cwd="/").stdout
    finally:
        (packages / "modelserver.py").unlink()
    ours, handlers = (importlib.util.find_spec(name) for name in ("modelserver", "modelserver_handlers"))

    assert output.startswith(f"{ours.origin} {handlers.origin} ")
    assert str(Path(elsewhere.__file__).parent) not in output.partition("[")[2]


def test_what_is_missing_is_named(tmp_path):
    venv.create(tmp_path / "empty", symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"

    with pytest.raises(
        ConfigError,
        match=r"workers need msgspec orjson python-multipart PyYAML there: .*empty.* -m pip install",
    ):
        check_interpreter(str(python))


def test_old_pythons_are_refused(monkeypatch):
    monkeypatch.setattr(elsewhere, "OLDEST", (4, 0))

    assert elsewhere.complaint().startswith(f"it is Python {sys.version_info[0]}.{sys.version_info[1]}, ")
    ast.parse(Path(elsewhere.__file__).read_text(), feature_version=(3, 8))
