"""Embeddings and scores of pairs by models of the hub, those of ``sentence-transformers`` included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.huggingface.batches import TokenBatches
from modelserver_handlers.huggingface.checkpoint import Checkpoint
from modelserver_handlers.language.embedding import EmbeddingModel, Reranker

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor], torch.Tensor]


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Padding may be on either side.
    places = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return states[torch.arange(len(states), device=states.device), places]


def _first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), mask.argmax(1)]


def _largest(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1)


_POOLS: Final[dict[str, Pool]] = {"mean": _mean, "lasttoken": _last, "cls": _first, "max": _largest}


def normalised(vectors: torch.Tensor) -> torch.Tensor:
    """Scales vectors to length 1."""
    return torch.nn.functional.normalize(vectors, dim=1)


class Embeddings(EmbeddingModel):
    """Computes what ``modules.json`` of sentence-transformers says; without one, the mean, of length 1.

    ``handler: {normalize: true}`` in model-config.yaml makes vectors of length 1 of any model's.
    """

    device: torch.device

    def load(self, context: Any) -> None:
        """Loads the network. Raises ModelLoadError, also for a module that is unknown."""
        checkpoint = Checkpoint.of(context)
        self.device = checkpoint.device
        self._network = checkpoint.load("AutoModel")
        self._pool, self._steps, limit, prompt = _sentence_modules(checkpoint, self._network.dtype)
        if checkpoint.settings.get("normalize") is True:
            self._steps.append(normalised)
        self._prompt = prompt
        self._batches = TokenBatches(checkpoint, self._network.config, limit)
        self._counts: dict[str, int] = {}

    def embed(self, texts: list[str]) -> Any:
        """A vector for each text."""
        vectors, counts = self._batches.run([self._prompt + text for text in texts], self._compute)
        self._counts = dict(zip(texts, counts, strict=True))
        return vectors

    def count_tokens(self, text: str) -> int:
        """The tokens of a text of the last batch."""
        return self._counts[text]

    def _compute(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        vectors = self._pool(self._network(**inputs).last_hidden_state, inputs["attention_mask"])
        for step in self._steps:
            vectors = step(vectors)
        return vectors.float()


def _sentence_modules(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Pool, list[Step], int | None, str]:
    """From hidden states to a vector, the most tokens, and what is put before each text."""
    pool: Pool = _mean
    steps: list[Step] = []
    modules = checkpoint.read_json("modules.json") or []
    for module in modules:
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling":
            pool = _pool_of(checkpoint.read_json(f"{path}/config.json"))
        elif kind == "Normalize":
            steps.append(normalised)
        elif kind == "Dense":
            steps.append(_dense(checkpoint, path, dtype))
        elif kind != "Transformer":
            raise ModelLoadError(f"modules.json: {kind} of sentence-transformers is not offered")
    limit = checkpoint.read_json("sentence_bert_config.json").get("max_seq_length")
    texts = checkpoint.read_json("config_sentence_transformers.json")
    prompt = (texts.get("prompts") or {}).get(texts.get("default_prompt_name")) or ""
    return pool, steps if modules else [normalised], limit, prompt


def _pool_of(config: dict[str, Any]) -> Pool:
    """Raises ModelLoadError for other ways than one of those above."""
    flags = [name.removeprefix("pooling_mode_") for name, value in config.items() if value is True]
    modes = [
        name.removesuffix("_tokens").removesuffix("_token") for name in flags if name != "include_prompt"
    ]
    mode = config.get("pooling_mode", modes[0] if len(modes) == 1 else ", ".join(modes))
    if mode not in _POOLS:
        raise ModelLoadError(
            f"pooling of sentence-transformers by {mode or 'nothing'}: one of {', '.join(_POOLS)} is offered"
        )
    return _POOLS[mode]


def _dense(checkpoint: Checkpoint, path: str, dtype: torch.dtype) -> Step:
    """A layer behind the pooling."""
    from safetensors.torch import load_file  # noqa: PLC0415 - comes with transformers

    config = checkpoint.read_json(f"{path}/config.json")
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    activation = {"Identity": torch.nn.Identity, "Tanh": torch.nn.Tanh}.get(name)
    file = Path(checkpoint.path) / path / "model.safetensors"
    if activation is None or not file.is_file():
        raise ModelLoadError(f"{path}: a layer with Identity or Tanh, and model.safetensors are needed")
    state = load_file(file)
    weight, bias = state["linear.weight"].to(checkpoint.device, dtype), state.get("linear.bias")
    bias = None if bias is None else bias.to(checkpoint.device, dtype)
    act = activation()

    def step(vectors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = act(torch.nn.functional.linear(vectors, weight, bias))
        return result

    return step


class Reranking(Reranker):
    """Scores of pairs by a cross-encoder: a sequence classifier with one label.

    Scores are from 0 to 1, unless the configuration of sentence-transformers says that they stay as they are.
    """

    device: torch.device

    def load(self, context: Any) -> None:
        """Loads the network. Raises ModelLoadError, also if it has several labels."""
        checkpoint = Checkpoint.of(context)
        self.device = checkpoint.device
        self._network = checkpoint.load("AutoModelForSequenceClassification")
        config = self._network.config
        if config.num_labels != 1:
            raise ModelLoadError(f"a model with one label ranks texts, and this one has {config.num_labels}")
        written = checkpoint.read_json("config.json")
        activation = (written.get("sentence_transformers") or {}).get("activation_fn")
        activation = activation or written.get("sbert_ce_default_activation_function") or ""
        self._is_plain = str(activation).endswith("Identity")
        self._batches = TokenBatches(checkpoint, config)
        if not self._batches.is_padded:
            raise ModelLoadError("its tokenizer has no token for padding")

    def rerank(self, pairs: list[tuple[str, str]]) -> Any:
        """A score for each pair."""
        return self._batches.run(pairs, self._compute)[0].tolist()

    def count_tokens(self, text: str) -> int:
        """The tokens of a text."""
        return len(self._batches.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _compute(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self._network(**inputs).logits[:, 0].float()
        return scores if self._is_plain else scores.sigmoid()
