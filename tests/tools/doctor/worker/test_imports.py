import importlib
import sys

import pytest

from modelserver.tools.doctor.probing import SourceLine
from modelserver.tools.doctor.worker.observer import ImportClock


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model whose code imports a package that imports another one."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "probed_handler.py").write_text("\nimport probed_outer.part\nimport probed_outer\n")
    for name, source in {
        "probed_outer": "import probed_inner\n",
        "probed_inner": "import time\ntime.sleep(0.05)\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
    (tmp_path / "probed_outer" / "part.py").write_text("import time\ntime.sleep(0.02)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "model")
    yield tmp_path / "model"
    for name in [name for name in sys.modules if name.startswith("probed_")]:
        del sys.modules[name]


def test_costs_of_imports_are_measured(folder):
    clock = ImportClock(str(folder))
    with clock:
        importlib.import_module("probed_handler")
    result = {each.name: each for each in clock.packages()}

    inner, outer = result["probed_inner"], result["probed_outer"]
    assert inner.own >= 0.05
    assert (inner.total, inner.place) == (0.0, None)
    assert 0.02 <= outer.own < outer.total
    assert outer.total >= 0.07
    assert outer.place == SourceLine("probed_handler.py", 2, "<module>")


def test_failed_import_is_counted(tmp_path, monkeypatch):
    machinery = importlib._bootstrap
    before = machinery._find_and_load
    with pytest.raises(ModuleNotFoundError, match="probed_nowhere"), ImportClock(str(tmp_path)):
        importlib.import_module("probed_nowhere")

    assert machinery._find_and_load is before
