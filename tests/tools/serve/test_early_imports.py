import pytest

from modelserver.models.settings.settings import Settings
from modelserver.tools.serve.early_imports import EarlyImports, needs_of
from modelserver.tools.serve.options import read_options


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import json\n", []),
        ("import modelserver\nclass A(modelserver.Handler): ...\n", ["modelserver_handlers.typed.handler"]),
        ("import torch\n", ["torch"]),
        ("def handle(data, context):\n    import torch\n", []),
        ("a broken line\n", []),
    ],
)
def test_imports_of_script_are_known_before_start(tmp_path, source, modules):
    """Its heavy packages, and the base class of ``modelserver``."""
    script = tmp_path / "script.py"
    script.write_text(source)

    assert needs_of(read_options([str(script)])) == ("", modules)


def test_what_other_sources_need(tmp_path):
    model = tmp_path / "net.pt2"
    model.write_bytes(b"")

    assert needs_of(read_options(["torchvision://resnet18"])) == ("image_classifier", [])
    assert needs_of(read_options([str(model)])) == ("base_handler", [])
    assert needs_of(read_options([str(tmp_path)])) == ("", [])
    assert needs_of(read_options(["hf://org/name"])) == ("modelserver_handlers.huggingface", [])


@pytest.mark.parametrize("settings", [Settings(worker_start="spawn"), Settings(blacklist_env_vars="A")])
async def test_nothing_is_imported_where_workers_may_not_be_forked(tmp_path, settings):
    """``worker_start=spawn``, or variables that must be hidden from workers."""
    ahead = EarlyImports(read_options([str(tmp_path)]), settings)
    await ahead.close()

    assert ahead.spawner is None
