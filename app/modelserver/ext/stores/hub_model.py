"""A model of the Hugging Face hub: its task and engine, by its configuration, and an archive's folder for it.

Nothing is loaded: configurations are JSON. The archive's folder has links to the model's files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl
from uuid import uuid4

from modelserver.errors import BadRequest, InvalidModel
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.models.archives.urls import scheme

EMBEDDINGS: Final = "embeddings"
GENERATION: Final = "text-generation"
RERANK: Final = "rerank"
CLASSIFICATION: Final = "text-classification"
SPEECH: Final = "automatic-speech-recognition"
_PACKAGE: Final = "modelserver_handlers.huggingface"
_HANDLERS: Final = {
    GENERATION: f"{_PACKAGE}:TextGeneration",
    EMBEDDINGS: f"{_PACKAGE}:Embeddings",
    RERANK: f"{_PACKAGE}:Reranking",
    **dict.fromkeys(
        (
            CLASSIFICATION,
            "token-classification",
            "fill-mask",
            "image-classification",
            "object-detection",
            "audio-classification",
            SPEECH,
        ),
        f"{_PACKAGE}:TaskPipeline",
    ),
}
TASKS: Final = tuple(_HANDLERS)
ENGINES: Final = ("auto", "vllm", "transformers")
# Tasks by the end of an architecture's name.
_HEADS: Final = {
    "ForCausalLM": GENERATION,
    "LMHeadModel": GENERATION,
    "ForMaskedLM": "fill-mask",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "ForObjectDetection": "object-detection",
    "ForCTC": SPEECH,
    "ForSpeechSeq2Seq": SPEECH,
    "WhisperForConditionalGeneration": SPEECH,
    "Model": EMBEDDINGS,
}
# Tasks by the hub's names for them, for configurations without an architecture.
_TAGS: Final = {
    **{task: task for task in TASKS},
    **dict.fromkeys(("feature-extraction", "sentence-similarity"), EMBEDDINGS),
    "text-ranking": RERANK,
}
_TAG: Final = re.compile(r"^pipeline_tag: *([\w-]+)", re.MULTILINE)
_LONGEST: Final = 16 << 20  # bytes of a configuration
_CONFIG: Final = "model-config.yaml"
_MODEL: Final = "model"
_ROWS: Final = 32
_PATIENCE: Final = 1200  # seconds
_URL: Final = re.compile(r"hf://[^/]+/([^/@?]+)(@[^/?]*)?/?")
_SAFE: Final = (".safetensors", ".safetensors.index.json")
# Files that only models have, and files of models that have lost their configuration.
_MARKS: Final = ("modules.json", "adapter_config.json")
_FILES: Final = ("*.safetensors", "tokenizer.json", "tokenizer_config.json")
_POINTER: Final = b"version https://git-lfs"
_PICKLED: Final = (".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """What the query of a model's URL says.

    ``trusts_code``: its own code may run, and its weights may be pickles.
    """

    task: str = "auto"
    engine: str = "auto"
    trusts_code: bool = False

    @classmethod
    def split(cls, url: str) -> tuple[str, HubOptions]:
        """The URL without its query, if it is of the hub or has just these options. Raises BadRequest."""
        plain, _, query = url.partition("?")
        fields = dict(parse_qsl(query, keep_blank_values=True))
        is_folder = scheme(url) is None and fields.keys() <= _CHOICES.keys()
        if not fields or not (is_folder or scheme(url) == "hf"):
            return url, cls()
        for name, value in fields.items():
            choices = _CHOICES.get(name)
            if choices is None:
                raise BadRequest(f"{url}: {name} is not one of {', '.join(_CHOICES)}")
            if value not in choices:
                raise BadRequest(f"{url}: {name} must be one of {', '.join(choices)}")
        trusts = fields.get("trust_remote_code") == "true"
        return plain, cls(fields.get("task", "auto"), fields.get("engine", "auto"), trusts)


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "task": ("auto", *TASKS),
    "engine": ENGINES,
    "trust_remote_code": ("true", "false"),
}


def is_hub_model(folder: Path) -> bool:
    """Whether a folder has the files of a model, and is no archive."""
    if not folder.is_dir() or (folder / MANIFEST_PATH).exists():
        return False
    if any((folder / name).is_file() for name in _MARKS):
        return True
    if not (folder / "config.json").exists():
        # Then the error names it.
        return any(any(folder.glob(kind)) for kind in _FILES) and not any(folder.glob("*.py"))
    try:
        return not _read(folder, "config.json").keys().isdisjoint(("model_type", "architectures", "auto_map"))
    except InvalidModel as error:
        # Beside weights, a file that is no JSON is a damaged configuration, which the error then names.
        return error.__cause__ is not None and any(folder.glob("*.safetensors"))


def archive_of(folder: Path, url: str, workdir: Path) -> Path | None:
    """The archive's folder for what :meth:`HubOptions.split` knows; None if ``folder`` is no model.

    Raises as :func:`lay_out`.
    """
    return lay_out(folder, *HubOptions.split(url), workdir) if is_hub_model(folder) else None


def lay_out(folder: Path, url: str, options: HubOptions, workdir: Path) -> Path:
    """Makes an archive's folder for the model in ``folder``, and returns it.

    Raises InvalidModel for a model that cannot be served, and OSError.
    """
    if not (folder / "config.json").is_file():
        raise not_a_model(url, has_adapter=(folder / "adapter_config.json").is_file())
    files = [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]
    check_weights((path.as_posix() for path in files), url, options)
    _check_parts(folder, url)
    task = options.task if options.task != "auto" else _task_of(folder, url)
    engine = options.engine
    if engine == "auto":
        engine = "vllm" if task == GENERATION and find_spec("vllm") is not None else "transformers"
    made = workdir / uuid4().hex
    made.mkdir(mode=0o700, parents=True)
    for path in files:
        link = made / _MODEL / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((folder / path).absolute())
    name = match[1] if (match := _URL.fullmatch(url)) else folder.name
    _describe(made, re.sub(r"[^\w.-]", "_", name), task, engine, options)
    return made


def _describe(made: Path, name: str, task: str, engine: str, options: HubOptions) -> None:
    """Writes manifest and configuration."""
    trust = {"trust_remote_code": True} if options.trusts_code else {}
    handler: dict[str, Any] = {"model_path": _MODEL, "task": task, **trust}
    config: dict[str, Any] = {"batchSize": _ROWS}
    if task == GENERATION or engine == "vllm":
        # None on demand, else one.
        alone = {"minWorkers": 0, "maxWorkers": 1, "batchSize": 1}
        config = {**alone, "startupTimeout": _PATIENCE, "responseTimeout": _PATIENCE}
    if engine == "vllm":
        runner = {"runner": "pooling"} if task in (EMBEDDINGS, RERANK) else {}
        handler = {"model_path": _MODEL, "task": task, "vllm_engine_config": {**runner, **trust}}
    (made / MANIFEST_PATH).parent.mkdir(mode=0o700)
    model = {
        "modelName": name,
        "handler": "vllm_handler" if engine == "vllm" else _HANDLERS[task],
        "modelVersion": "1.0",
        "configFile": _CONFIG,
    }
    (made / MANIFEST_PATH).write_text(json.dumps({"runtime": "python", "model": model}), "utf-8")
    # JSON is YAML.
    (made / _CONFIG).write_text(json.dumps({**config, "handler": handler}, indent=2), "utf-8")


def not_a_model(url: str, *, has_adapter: bool) -> InvalidModel:
    """The error for files without a configuration."""
    what = "an adapter, which needs its base model" if has_adapter else "not a model: it has no config.json"
    return InvalidModel(f"{url} is {what}.")


def check_weights(names: Iterable[str], url: str, options: HubOptions) -> None:
    """Raises InvalidModel if there are no weights, or only pickles, which are not trusted."""
    listed = list(names)
    if any(name.endswith(_SAFE) for name in listed):
        return
    pickles = [name for name in listed if name.endswith(_PICKLED)]
    if not pickles:
        others = [name for name in listed if name.endswith(".gguf")]
        kind = f": {others[0]} is for llama.cpp" if others else ""
        raise InvalidModel(f"{url} has no weights in safetensors{kind}.")
    if not options.trusts_code:
        raise InvalidModel(
            f"{url} has no weights in safetensors, but {pickles[0]}: a pickle, which can run any code when "
            "it is loaded. If you trust its author: modelserver serve --trust, or ?trust_remote_code=true."
        )


def _check_parts(folder: Path, url: str) -> None:
    """Raises InvalidModel for weights that were not downloaded, or whose files are not all there."""
    for weights in folder.glob("*.safetensors"):
        with weights.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise InvalidModel(f"{url}: {weights.name} is a pointer of Git LFS: git lfs pull gets it.")
    for index in folder.glob("*.safetensors.index.json"):
        files = _read(folder, index.name).get("weight_map")
        parts = set(map(str, files.values())) if isinstance(files, dict) else set()
        if missing := sorted(part for part in parts if not (folder / part).is_file()):
            raise InvalidModel(f"{url} is incomplete: {missing[0]} is missing.")


def _task_of(folder: Path, url: str) -> str:
    """Raises InvalidModel if the configuration does not tell."""
    config = _read(folder, "config.json")
    sentences = _read(folder, "config_sentence_transformers.json")
    if sentences.get("model_type") == "CrossEncoder":
        return RERANK
    if (folder / "modules.json").is_file():
        return EMBEDDINGS
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    if architecture.endswith("ForSequenceClassification"):
        if "feature_extractor_type" in _read(folder, "preprocessor_config.json"):
            return "audio-classification"
        labels = config.get("id2label")
        return RERANK if isinstance(labels, dict) and len(labels) == 1 else CLASSIFICATION
    if architecture.endswith("ForConditionalGeneration") and "vision_config" in config:
        return GENERATION
    by_head = [task for end, task in _HEADS.items() if architecture.endswith(end)]
    tag = _tag_of(folder)
    if by_head and (by_head[0] != EMBEDDINGS or tag not in _TAGS):
        return by_head[0]
    if tag in _TAGS:
        return _TAGS[tag]
    named = architecture or config.get("model_type") or "nothing"
    raise InvalidModel(
        f"{url}: config.json names {named}, whose task is unknown here; choose one with --task or ?task=: "
        f"{', '.join(TASKS)}."
    )


def _tag_of(folder: Path) -> str:
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            match = _TAG.search(file.read(1 << 16))
    except OSError:
        return ""
    return match[1] if match else ""


def _read(folder: Path, name: str) -> dict[str, Any]:
    """An object of JSON, empty if there is no such file. Raises InvalidModel."""
    path = folder / name
    try:
        if path.stat().st_size > _LONGEST:
            raise InvalidModel(f"{name} is larger than {_LONGEST} bytes.")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{name} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidModel(f"{name} must be an object.")
    return document
