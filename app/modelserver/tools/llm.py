"""The command ``modelserver llm``: a language model with vLLM, with the flags of TorchServe's launcher.

The model becomes a folder in the model store, which is removed when the server has stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from modelserver.errors import ConfigError
from modelserver.ext import EXTENSIONS
from modelserver.run import start_stop
from modelserver.tools.archiver import ArchiveConfig, ArchiverError, build_archive, check_name
from modelserver.tools.commands import exit_status, termination_is_interruption

# The memory that a language model needs, from its config.json: weights, and the cache of keys and values.

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
# What vLLM takes of a GPU by itself.
_SHARE: Final = 0.92


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Bytes of the weights, and of a token in the cache; ``length`` is the most tokens of a request."""

    weights: float
    per_token: int
    length: int

    @classmethod
    def read(cls, folder: Path, engine: Mapping[str, Any]) -> ModelSize:
        """That of the model in a folder, with engine arguments of vLLM. Raises ConfigError."""
        try:
            config = json.loads((folder / "config.json").read_text("utf-8"))
            config |= config.get("text_config") or {}
            dtype = engine.get("dtype") or "auto"
            stored = config.get("dtype") or config.get("torch_dtype") or "float32"
            width = _BYTES[stored if dtype == "auto" else dtype]
            length = engine.get("max_model_len") or config["max_position_embeddings"]
            if config.get("kv_lora_rank") or set(config.get("layer_types") or ()) - {"full_attention"}:
                raise ConfigError(f"{folder}/config.json: not all layers keep whole keys and values")
            layers, heads = config["num_hidden_layers"], config.get("num_key_value_heads")
            head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            heads = heads or config["num_attention_heads"]
            files = float(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
            weights = files or float(width * parameters(config, head, heads))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} needs a config.json: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{folder}/config.json is not that of a language model: {error}") from None
        return cls(weights, 2 * layers * heads * head * width, length)

    def describe(self, memory: float, engine: Mapping[str, Any]) -> list[str]:
        """In words, for GPUs with so many GB."""
        length, request = self.length, self.per_token * self.length
        gpus = engine.get("tensor_parallel_size") or 1
        share = engine.get("gpu_memory_utilization") or _SHARE
        used = memory * 1e9 * share * gpus
        tokens = int((used - self.weights) // self.per_token)
        each, whole = f"{request / 1e9:.2f} GB", f"{(self.weights + request) / 1e9:.2f} GB"
        lines = [
            f"weights: {self.weights / 1e9:.2f} GB",
            f"cache: {self.per_token:,} bytes a token, {each} for a request of {length:,} tokens",
            f"vLLM takes {share:g} of {gpus} x {memory:g} GB: {used / 1e9:.2f} GB",
        ]
        if tokens < length:
            return [*lines, f"not enough: weights and one request need {whole}"]
        count = tokens // length
        return [*lines, f"in the cache: {tokens:,} tokens, {count:,} requests of {length:,} tokens"]


def parameters(config: Mapping[str, Any], head: int, heads: int) -> int:
    """The weights of a model of Llama's kind, mixtures of experts included; ``heads`` are those of keys."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    attention = 2 * hidden * head * (config["num_attention_heads"] + heads)
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    inner = (config.get("moe_intermediate_size") if experts > 1 else None) or config["intermediate_size"]
    feed_forward = experts * 3 * hidden * inner + (experts * hidden if experts > 1 else 0)
    layer = attention + feed_forward + 2 * hidden
    ends = 1 if config.get("tie_word_embeddings") else 2
    return int(config["num_hidden_layers"] * layer + ends * vocabulary * hidden + hidden)


HANDLER: Final = "vllm_handler"
_ENGINE: Final = "vllm_engine."
# Those that TorchServe has.
_KNOWN: Final = {"max_num_seqs": int, "max_model_len": int, "download_dir": str}
_OURS: Final = {"MAR-INF", "model-config.yaml"}


def main(arguments: Sequence[str]) -> int:
    """Serves the model until it is stopped; returns the exit status."""
    return exit_status(lambda: serve(arguments), {ConfigError: 1, ArchiverError: 1, OSError: 1})


def serve(arguments: Sequence[str]) -> int:
    """Serves until it is stopped. Raises ConfigError or ArchiverError for what cannot be served."""
    options, others = build_parser().parse_known_args(arguments)
    engine = {
        name.removeprefix(_ENGINE): value for name, value in vars(options).items() if name.startswith(_ENGINE)
    }
    engine = {name: value for name, value in engine.items() if value is not None} | read_engine_flags(others)
    if options.engine != "vllm":
        raise ConfigError(f"--engine={options.engine} is not offered: vllm is")
    if options.memory is not None:
        arguments_of_engine = {"dtype": options.dtype, **engine}
        size = ModelSize.read(Path(options.model_id), arguments_of_engine)
        print(*size.describe(options.memory, arguments_of_engine), sep="\n")
        return 0
    check_name(options.model_name)
    store = Path(options.model_store)
    store.mkdir(parents=True, exist_ok=True)
    folder = store / options.model_name
    if folder.exists() and not {each.name for each in folder.iterdir()} <= _OURS:
        raise ConfigError(f"{folder} is another model: choose another --model_name")
    with termination_is_interruption():
        write_model(options, engine)
        try:
            flags = ["--foreground", "--ncs", "--model-store", str(store), "--models", options.model_name]
            tokens = ["--disable-token-auth"] if options.disable_token_auth else []
            return start_stop.main([*flags, *tokens], EXTENSIONS)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write_model(options: argparse.Namespace, engine: dict[str, Any]) -> Path:
    """Writes the model's folder, over one from before."""
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "model-config.yaml"
        config.write_text(yaml.safe_dump(model_config(options, engine), sort_keys=False), "utf-8")
        return build_archive(
            ArchiveConfig(
                model_name=options.model_name,
                handler=HANDLER,
                version="1.0",
                config_file=config,
                export_path=options.model_store,
                archive_format="no-archive",
                force=True,
            )
        )


def model_config(options: argparse.Namespace, engine: dict[str, Any]) -> dict[str, Any]:
    """The model-config.yaml."""
    config = {"model": options.model_id, "dtype": options.dtype, "served_model_name": [options.model_name]}
    config |= engine
    count = config.get("tensor_parallel_size", 1)
    several = {"parallelType": "custom", "parallelLevel": count} if count > 1 else {}
    return {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "startupTimeout": options.startup_timeout,
        "responseTimeout": 1200,
        **several,
        "handler": {"vllm_engine_config": config},
    }


def read_engine_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """What ``--vllm_engine.NAME VALUE`` and ``…=VALUE`` set, as YAML has it. Raises ConfigError."""
    rest = list(arguments)
    values: dict[str, Any] = {}
    while rest:
        flag, has_value, value = rest.pop(0).partition("=")
        if not flag.startswith(f"--{_ENGINE}"):
            raise ConfigError(f"{flag} is unknown: modelserver llm --help lists the flags")
        if not has_value and not rest:
            raise ConfigError(f"{flag} has no value")
        values[flag.removeprefix(f"--{_ENGINE}")] = yaml.safe_load(value if has_value else rest.pop(0))
    return values


def build_parser() -> argparse.ArgumentParser:
    """TorchServe's flags; those of the engine are read apart."""
    parser = argparse.ArgumentParser(
        "modelserver llm",
        description="Serves a language model with vLLM, behind OpenAI's API.",
        epilog="--vllm_engine.NAME VALUE sets any other of vLLM's engine arguments, such as "
        "--vllm_engine.tensor_parallel_size 2.",
        allow_abbrev=False,
    )

    def add(name: str, about: str, **more: Any) -> None:
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", help=about, **more)

    add("model_id", "the model's name at the Hugging Face hub, or its folder", required=True)
    add("model_name", "the name that clients use (default: model)", default="model")
    add("model_store", "the folder of models (default: model_store)", default="model_store")
    parser.add_argument("--engine", default="vllm", help="vllm; TorchServe's trt_llm is not offered")
    parser.add_argument("--dtype", default="auto", help="the type of the weights (default: the model's)")
    add("startup_timeout", "seconds for loading (default: 1200)", type=int, default=1200)
    add("disable_token_auth", "require no tokens", action="store_true")
    about = "only say what the model in a folder needs of a GPU's memory, and how many requests fit"
    parser.add_argument("--memory", type=float, metavar="GB", help=about)
    for name, kind in _KNOWN.items():
        parser.add_argument(f"--{_ENGINE}{name}", type=kind, help="an engine argument of vLLM")
    return parser
