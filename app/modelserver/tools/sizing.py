"""The memory that a language model needs, from its config.json: weights, and the cache of keys and values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
