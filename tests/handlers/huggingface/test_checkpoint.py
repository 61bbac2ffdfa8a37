import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from modelserver_handlers import huggingface
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.huggingface import checkpoint
from modelserver_handlers.huggingface.checkpoint import Checkpoint, length_of


def opened(folder, **settings):
    config = {"handler": {"model_path": "model", **settings}}
    properties = {"model_dir": str(folder), "gpu_id": None}
    return Checkpoint.of(SimpleNamespace(model_yaml_config=config, system_properties=properties))


def test_path_is_looked_up_in_the_archive(tmp_path):
    (tmp_path / "model").mkdir()

    assert opened(tmp_path).path == str(tmp_path / "model")
    assert opened(tmp_path).arguments == {"trust_remote_code": False, "local_files_only": True}
    assert opened(tmp_path, model_path="org/name", trust_remote_code=True).arguments == {
        "trust_remote_code": True,
        "local_files_only": False,
    }


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"model_path": ""}, "model_path must be"), ({"dtype": "int4"}, "dtype must be one of")],
)
def test_wrong_settings_are_named(tmp_path, settings, problem):
    with pytest.raises(ModelLoadError, match=problem):
        opened(tmp_path, **settings)


def test_weights_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    for number in range(2):
        with (model / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(3 << 30)
    (model / "config.json").write_text(json.dumps({"torch_dtype": "float16"}))
    monkeypatch.setattr(checkpoint, "available_memory", lambda: 7e9)

    with (
        pytest.raises(ModelLoadError, match=r"weights need 12.9 GB of memory, and this machine has 7.0 GB"),
        opened(tmp_path).loading(),
    ):
        pass
    with opened(tmp_path, dtype="float16", trust_remote_code=True).loading() as arguments:
        assert arguments == {"dtype": torch.float16, "use_safetensors": None}


def test_errors_of_transformers_are_explained(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelLoadError, match=r"transformers .* cannot load it: "):
        opened(tmp_path).load("AutoModel")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 1}')
    (tmp_path / "model" / "model.safetensors").write_text("cut")
    with pytest.raises(ModelLoadError, match=r"cannot load it: Error while deserializing header"):
        opened(tmp_path).load("AutoModel")
    (tmp_path / "model" / "tokenizer.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"its tokenizer cannot be loaded"):
        opened(tmp_path).load_tokenizer()
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config.json cannot be read"):
        opened(tmp_path).read_json("config.json")


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(
        checkpoint, "import_module", Mock(side_effect=ModuleNotFoundError(name="transformers"))
    )
    with pytest.raises(ModelLoadError, match=r"transformers is not installed: .*modelserver\[transformers\]"):
        checkpoint.import_transformers()


@pytest.mark.parametrize("library", [SimpleNamespace(), ModelLoadError("transformers is not installed")])
def test_a_library_that_does_not_fit_is_reported_later(monkeypatch, library):
    """By the model that loads: the process that forks workers goes on without it."""
    importing = Mock(side_effect=[library])
    monkeypatch.setattr(huggingface, "import_transformers", importing)
    huggingface.preload()

    assert importing.call_count == 1


@pytest.mark.parametrize(
    ("limit", "config", "expected"),
    [
        (512, {"max_position_embeddings": 2048}, 512),
        (10**30, {"max_position_embeddings": 2048}, 2048),
        (10**30, {"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1}, 512),
        (10**30, {}, None),
    ],
)
def test_length_is_known_to_tokenizer_or_network(limit, config, expected):
    assert length_of(SimpleNamespace(model_max_length=limit), SimpleNamespace(**config)) == expected
