import random
import sys

import pytest

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.modules import import_file, list_classes_from_module


@pytest.fixture(autouse=True)
def forget_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_imported_once_under_its_name(tmp_path):
    (tmp_path / "some_model_file.py").write_text("class Net: pass")
    module = import_file(tmp_path / "some_model_file.py")

    assert sys.modules["some_model_file"] is module
    assert import_file(tmp_path / "some_model_file.py") is module
    assert module.Net.__module__ == "some_model_file"


def test_a_taken_name_is_left_alone(tmp_path):
    (tmp_path / "random.py").write_text("class Net: pass")
    module = import_file(tmp_path / "random.py")

    assert [result.__name__ for result in list_classes_from_module(module)] == ["Net"]
    assert sys.modules["random"] is random


def test_a_missing_file_is_named(tmp_path):
    """A missing file is named, as TorchServe does (F40)."""
    with pytest.raises(ModelLoadError, match=r"^Missing the model\.py file$"):
        import_file(tmp_path / "model.py")


def test_a_failing_file_is_not_cached(tmp_path):
    """What the file raises comes through (F40), and a corrected file can be imported."""
    path = tmp_path / "broken_model_file.py"
    path.write_text("import not_installed_anywhere")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        import_file(path)
    path.write_text("x = 1 # corrected, and of another length")

    assert import_file(path).x == 1


def test_only_own_classes_are_listed(tmp_path):
    path = tmp_path / "classes_file.py"
    path.write_text("from pathlib import Path\nclass B(dict): pass\nclass A: pass")
    module = import_file(path)

    assert [result.__name__ for result in list_classes_from_module(module)] == ["A", "B"]
    assert [result.__name__ for result in list_classes_from_module(module, dict)] == ["B"]
