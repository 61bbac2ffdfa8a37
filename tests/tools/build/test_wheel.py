import zipfile
from importlib.metadata import distribution
from pathlib import Path

import modelserver
from modelserver.tools.build.context import write_wheel


def test_wheel_is_of_the_modelserver_that_runs(tmp_path):
    """Installed, it is the same files with the same commands and requirements."""
    path = write_wheel(tmp_path)
    installed = distribution("modelserver")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        described = f"modelserver-{modelserver.__version__}.dist-info"
        assert wheel.read("modelserver/__init__.py") == Path(modelserver.__file__).read_bytes()
        assert wheel.read(f"{described}/entry_points.txt").decode() == installed.read_text("entry_points.txt")
        record = wheel.read(f"{described}/RECORD").decode().splitlines()

    assert {name.partition("/")[0] for name in names} == {"modelserver", "modelserver_handlers", described}
    assert [line.partition(",")[0] for line in record] == names
    assert not [name for name in names if "__pycache__" in name]
