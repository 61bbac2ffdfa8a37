import json

import pytest

from modelserver.errors import BadRequest, InvalidModel
from modelserver.ext.stores import hub_model
from modelserver.ext.stores.hub_model import HubOptions, is_hub_model, lay_out
from modelserver.models.archives.archive import open_archive
from modelserver.models.options.yaml_file import parse_model_config

URL = "hf://org/Tiny-1.5@main"


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    monkeypatch.setattr(hub_model, "find_spec", lambda name: None)


def written(folder, config=None, **files):
    """The folder of a model; ``files`` are documents without their ending, or texts."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    documents = files if config is None else {"config": config, **files}
    for name, document in documents.items():
        is_text = isinstance(document, str)
        path = folder / (name.replace("_dot_", ".") if is_text else f"{name}.json")
        path.write_text(document if is_text else json.dumps(document))
    return folder


def read(made):
    """Name and handler of the manifest, and the settings of the handler."""
    archive = open_archive(made, URL, made.parent, temporary=True)
    config, warnings = parse_model_config(archive.config_text or "")
    assert warnings == []
    assert archive.manifest.handler is not None
    return str(archive.manifest.model_name), archive.manifest.handler, dict(config.raw["handler"])


HANDLERS = {"text-generation": "TextGeneration", "embeddings": "Embeddings", "rerank": "Reranking"}
CROSS_ENCODER = {"modules": [{}], "config_sentence_transformers": {"model_type": "CrossEncoder"}}
SOUND = {"preprocessor_config": {"feature_extractor_type": "Y"}}


@pytest.mark.parametrize(
    ("task", "architecture", "more", "files"),
    [
        ("text-generation", "LlamaForCausalLM", {}, {}),
        ("text-generation", "GPT2LMHeadModel", {}, {}),
        ("text-generation", "Gemma3ForConditionalGeneration", {"vision_config": {}}, {}),
        ("embeddings", "BertModel", {}, {}),
        ("embeddings", "BertForMaskedLM", {}, {"modules": [{}]}),
        ("embeddings", None, {"model_type": "x"}, {"README_dot_md": "pipeline_tag: sentence-similarity"}),
        ("rerank", "XForSequenceClassification", {"id2label": {"0": "a"}}, {}),
        ("rerank", "XModel", {}, CROSS_ENCODER),
        ("text-classification", "XForSequenceClassification", {}, {}),
        ("text-classification", "XForSequenceClassification", {"id2label": 3}, {}),
        ("audio-classification", "XForSequenceClassification", {}, SOUND),
        ("token-classification", "XForTokenClassification", {}, {}),
        ("fill-mask", "XForMaskedLM", {}, {}),
        ("fill-mask", None, {"model_type": "x"}, {"README_dot_md": "---\npipeline_tag: fill-mask\n---\n"}),
        ("image-classification", "ViTForImageClassification", {}, {}),
        ("object-detection", "DetrForObjectDetection", {}, {}),
        ("automatic-speech-recognition", "WhisperForConditionalGeneration", {}, {}),
        ("automatic-speech-recognition", "Wav2Vec2ForCTC", {}, {}),
    ],
)
def test_task_is_known_from_the_configuration(tmp_path, task, architecture, more, files):
    config = {**more, "architectures": [architecture]} if architecture else more
    folder = written(tmp_path / "x", config, **files)

    assert is_hub_model(folder)
    name, handled_by, settings = read(lay_out(folder, URL, HubOptions(), tmp_path))
    handler = HANDLERS.get(task, "TaskPipeline")
    assert (name, handled_by) == ("Tiny-1.5", f"modelserver_handlers.huggingface:{handler}")
    assert settings == {"model_path": "model", "task": task}


def test_files_are_linked(tmp_path):
    """Nothing is copied; a folder's name is the model's."""
    folder = written(tmp_path / "my model", {"architectures": ["BertModel"]}, modules=[])
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")

    made = lay_out(folder, str(folder), HubOptions(), tmp_path / "work")

    assert (made / "model" / "model.safetensors").readlink() == folder / "model.safetensors"
    assert (made / "model" / "1_Pooling" / "config.json").read_text() == "{}"
    assert read(made)[0] == "my_model"
    assert not is_hub_model(made)


def test_engine_and_task_can_be_chosen(tmp_path, monkeypatch):
    folder = written(tmp_path / "x", {"architectures": ["LlamaForCausalLM"]})
    chosen = HubOptions("embeddings", "vllm", trusts_code=True)
    _, handler, settings = read(lay_out(folder, URL, chosen, tmp_path))
    monkeypatch.setattr(hub_model, "find_spec", lambda name: name == "vllm" or None)
    automatic = lay_out(folder, URL, HubOptions(), tmp_path)
    config, _ = parse_model_config((automatic / "model-config.yaml").read_text())

    assert (handler, settings["task"]) == ("vllm_handler", "embeddings")
    assert settings["vllm_engine_config"] == {"runner": "pooling", "trust_remote_code": True}
    assert read(automatic)[1] == "vllm_handler"
    assert (config.min_workers, config.max_workers, config.startup_timeout) == (0, 1, 1200)
    assert read(lay_out(folder, URL, HubOptions(engine="transformers"), tmp_path))[1].endswith(
        "TextGeneration"
    )
    trusting = read(lay_out(folder, URL, HubOptions(engine="transformers", trusts_code=True), tmp_path))[2]
    assert trusting["trust_remote_code"] is True


@pytest.mark.parametrize(
    ("config", "files", "problem"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            {},
            "names T5ForConditionalGeneration, whose task",
        ),
        (None, {"adapter_config": {}}, "is an adapter, which needs its base model"),
        (None, {"modules": []}, "is not a model: it has no config.json"),
        (None, {}, "is not a model: it has no config.json"),
        (
            {"architectures": ["BertModel"]},
            {"model.safetensors.index": {"weight_map": {"a": "model-1.safetensors"}}},
            "is incomplete: model-1.safetensors is missing",
        ),
        (
            {"architectures": ["BertModel"]},
            {"model_dot_safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"},
            "model.safetensors is a pointer of Git LFS: git lfs pull gets it",
        ),
        (None, {"config_dot_json": '{"model_type": '}, "config.json cannot be read"),
        ({"architectures": 3}, {"model.safetensors.index": {"weight_map": ["a"]}}, "whose task is unknown"),
    ],
)
def test_what_cannot_be_served_is_explained(tmp_path, config, files, problem):
    folder = written(tmp_path / "x", config, **files)
    with pytest.raises(InvalidModel, match=problem):
        lay_out(folder, URL, HubOptions(), tmp_path)


def test_pickles_need_trust_and_other_folders_are_no_models(tmp_path):
    """The message says how."""
    folder = written(tmp_path / "x", {"architectures": ["BertModel"]})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(InvalidModel, match=r"model.bin: a pickle.*--trust, or \?trust_remote_code=true"):
        lay_out(folder, URL, HubOptions(), tmp_path)
    assert lay_out(folder, URL, HubOptions(trusts_code=True), tmp_path).is_dir()
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(InvalidModel, match="no weights in safetensors"):
        lay_out(folder, URL, HubOptions(trusts_code=True), tmp_path)

    assert not is_hub_model(written(tmp_path / "a", {"some": "thing"}))
    assert not is_hub_model(written(tmp_path / "b", config_dot_json="[]"))
    assert is_hub_model(written(tmp_path / "d", config_dot_json="{"))
    assert is_hub_model(written(tmp_path / "e"))
    assert not is_hub_model(written(tmp_path / "f", handler_dot_py=""))
    assert not is_hub_model(tmp_path / "none")
    archive = written(tmp_path / "c", {"model_type": "bert"})
    (archive / "MAR-INF").mkdir()
    (archive / "MAR-INF" / "MANIFEST.json").write_text("{}")
    assert not is_hub_model(archive)


@pytest.mark.parametrize(
    ("url", "plain", "options"),
    [
        ("hf://a/b", "hf://a/b", HubOptions()),
        ("hf://a/b@x?task=rerank&engine=transformers", "hf://a/b@x", HubOptions("rerank", "transformers")),
        ("folder?trust_remote_code=true", "folder", HubOptions(trusts_code=True)),
        ("handler.py?model_file=w.pt", "handler.py?model_file=w.pt", HubOptions()),
        ("s3://a/b?task=rerank", "s3://a/b?task=rerank", HubOptions()),
        ("odd?.mar", "odd?.mar", HubOptions()),
    ],
)
def test_query_of_a_url_has_the_options(url, plain, options):
    assert HubOptions.split(url) == (plain, options)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("token=x", "token is not one of task, engine, trust_remote_code"),
        ("task=juggling", "task must be one of auto, text-generation"),
        ("trust_remote_code=1", "trust_remote_code must be one of true, false"),
    ],
)
def test_wrong_options_are_named(query, problem):
    with pytest.raises(BadRequest, match=problem):
        HubOptions.split(f"hf://a/b?{query}")
