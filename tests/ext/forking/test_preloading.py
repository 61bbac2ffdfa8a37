import pytest

from modelserver.ext.forking.preloading import EARLY_VARIABLE, Preload, heavy_imports, preload_of


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import json\n", set()),
        ("import os, torch.nn as nn\n", {"torch"}),
        ("from torch.nn import functional\nfrom torchvision import models\n", {"torch", "torchvision"}),
        ("import torch_like\nfrom .torch import x\n", set()),
        ("from modelserver_handlers.vision import VisionHandler\n", {"modelserver_handlers.vision"}),
        ("from modelserver_handlers import base, context\n", {"modelserver_handlers.base"}),
        ("import modelserver_handlers.errors\nfrom modelserver_handlers.context import Context\n", set()),
        ("from ts.torch_handler.base_handler import BaseHandler\n", {"modelserver_handlers.base"}),
        ("from ts.context import Context\nfrom ts.handler_utils.timer import timed\n", set()),
        ("def handle(data, context):\n    import torch\n", set()),
        ("import torch\ndef broken(:\n", set()),
        ("import torch\0", set()),
    ],
)
def test_heavy_imports_are_listed(source, modules):
    assert heavy_imports(source) == modules


def test_preload_has_what_all_files_import(tmp_path):
    (tmp_path / "h.py").write_text("import json\n")

    assert preload_of(tmp_path, "h.py:handle") is None
    assert preload_of(tmp_path, "h") is None

    (tmp_path / "h.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("import torch\n")

    assert preload_of(tmp_path, "h.py") == Preload(("torch",), "")
    assert preload_of(tmp_path, "image_classifier") == Preload(("torch",), "image_classifier")
    (tmp_path / "model.py").unlink()
    assert preload_of(tmp_path, "image_classifier") == Preload((), "image_classifier")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "KMP_AFFINITY", "PYTORCH_ALLOC_CONF"])
def test_variables_that_count_at_import(tmp_path, name):
    (tmp_path / "h.py").write_text(f"import os\nos.environ['{name}'] = '1'\nimport torch\n")
    assert preload_of(tmp_path, "h.py") is None


def test_a_model_that_cannot_be_read(tmp_path):
    (tmp_path / "h.py").mkdir()
    (tmp_path / "g.py").symlink_to(tmp_path / "g.py")

    assert preload_of(tmp_path, "h.py") is None


def test_early_variables_are_listed():
    early = ["LD_PRELOAD", "OMP_NUM_THREADS", "MKL_DYNAMIC", "PYTHONPATH", "MALLOC_ARENA_MAX", "TZ", "LC_ALL"]
    late = ["CUDA_VISIBLE_DEVICES", "RANK", "HOME", "LDAP", "TZDATA"]

    assert [name for name in early if not EARLY_VARIABLE.fullmatch(name)] == []
    assert [name for name in late if EARLY_VARIABLE.fullmatch(name)] == []
