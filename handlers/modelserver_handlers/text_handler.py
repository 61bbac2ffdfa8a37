"""``TextHandler``: turns texts into numbers of words for the network (reference 14.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import BadInput, ModelLoadError, PredictionException
from modelserver_handlers.handler_options import handler_settings, whole_number
from modelserver_handlers.networks.insights import bag_attributions, captum_attributions, find_embedding
from modelserver_handlers.texts import (
    expand_contractions,
    features,
    get_tokenizer,
    remove_accents,
    remove_html,
    remove_punctuation,
    text_input,
)
from modelserver_handlers.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary


@dataclass(frozen=True, slots=True)
class Text:
    """One text: its words, and the numbers of its features, each a run of words ``[start, end)``."""

    words: list[str]
    ids: list[int]
    runs: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """``ids``: the numbers of all texts, one after the other; ``offsets``: where each text begins."""

    ids: torch.Tensor
    offsets: torch.Tensor
    texts: list[Text]


class TextHandler(BaseHandler):
    """Cleans texts, cuts them into words and runs of words, and looks these up in ``source_vocab``.

    The network is called with all numbers of the batch and with each text's offset among them, as
    ``nn.EmbeddingBag`` is. Unlike in TorchServe, the whole batch is answered, and words that the vocabulary
    lacks get its number for unknown ones, or are left out. Only texts that cannot be read are rejected.
    model-config.yaml may say ``handler: {ngrams: 1}``.
    """

    ngrams = 2
    source_vocab: Vocabulary
    tokenizer = staticmethod(get_tokenizer("basic_english"))

    def initialize(self, context: Any) -> None:
        """Loads model and vocabulary. Raises ModelLoadError with the vocabulary's file and problem."""
        super().initialize(context)
        folder = Path(str(context.system_properties.get("model_dir")))
        self.source_vocab = load_vocabulary(_inside(folder, self.get_source_vocab_path()))
        self.ngrams = whole_number(handler_settings(self.model_yaml_config), "ngrams", self.ngrams)

    def get_source_vocab_path(self, ctx: Any = None) -> str:
        """The vocabulary's file in the archive: the manifest's ``sourceVocab``, else ``source_vocab.pt``."""
        return self._ms_manifest_entry("sourceVocab") or VOCABULARY_FILE

    # The steps of cleaning, which can be overridden singly, as in TorchServe.

    _remove_html_tags = staticmethod(remove_html)
    _expand_contractions = staticmethod(expand_contractions)
    _remove_accented_characters = staticmethod(remove_accents)
    _remove_punctuation = staticmethod(remove_punctuation)

    def _remove_puncutation(self, text: str) -> str:
        """TorchServe's first name for it, for handlers that call or override it."""
        return self._remove_punctuation(text)

    def _tokenize(self, text: str) -> list[str]:
        words: list[str] = self.tokenizer(text)
        return words

    def cleaned_words(self, text: str) -> list[str]:
        """The words of a text: no HTML, lower case, contractions written out, no accents, no punctuation."""
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        return self._tokenize(self._remove_puncutation(self._remove_accented_characters(text)))

    def preprocess(self, data: Any) -> TextBatch:
        """Rows to one batch of numbers, rejected ones left out."""
        return self._ms_batch(self._ms_read_each(self._ms_read, data))

    def inference(self, data: TextBatch, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, one row per text."""
        with torch.inference_mode():
            return self.model(data.ids, data.offsets, *args, **kwargs)

    def get_insights(self, text_preprocess: TextBatch, _inputs: Any, target: Any = 0) -> list[Any]:
        """``{"words": [...], "importances": [...]}`` for each text: what each word adds to the output.

        The attribution of a run of words is divided among them. Unlike this, TorchServe says how much
        each dimension of the embedding adds. Raises PredictionException: 400 for an unknown class, 501 for a
        network without an ``nn.EmbeddingBag`` to look into.
        """
        bag = find_embedding(self.model)
        if not isinstance(bag, torch.nn.EmbeddingBag):
            raise PredictionException("Only an eager network with an nn.EmbeddingBag can be explained", 501)
        ids, offsets = text_preprocess.ids, text_preprocess.offsets
        try:
            shares = bag_attributions(lambda: self.model(ids, offsets), bag, ids, offsets, target).tolist()
        except IndexError:
            raise PredictionException(f"the model has no class {target}", 400) from None
        parts = iter(shares)
        return [_insight(text, [next(parts) for _ in text.ids]) for text in text_preprocess.texts]

    def get_word_token(self, input_tokens: Iterable[Any]) -> list[str]:
        """The words for these numbers, for custom explanations; words are left unchanged."""
        words = self.source_vocab.get_itos()
        return [token if isinstance(token, str) else words[int(token)] for token in input_tokens]

    def summarize_attributions(self, attributions: torch.Tensor) -> torch.Tensor:
        """One number per word of attributions (1 x words x dimensions), normalised to length 1."""
        summed = attributions.sum(dim=-1).squeeze(0)
        shares: torch.Tensor = summed / torch.linalg.vector_norm(summed)
        return shares

    @cached_property
    def lig(self) -> Any:
        """Captum's LayerIntegratedGradients of the embedding, for custom handlers; needs Captum."""
        return captum_attributions().LayerIntegratedGradients(self.model, find_embedding(self.model))

    def _ms_read(self, row: Any) -> Text:
        value = text_input(row)
        if isinstance(value, list):
            highest = self.source_vocab.highest
            if any(not 0 <= number <= highest for number in value):
                raise BadInput(f"token numbers must be from 0 to {highest}")
            return Text([str(number) for number in value], value, [(at, at + 1) for at in range(len(value))])
        words = self.cleaned_words(value)
        runs = features(words, self.ngrams)
        numbers = self.source_vocab.numbers([" ".join(words[start:end]) for start, end in runs])
        known = [(number, run) for number, run in zip(numbers, runs, strict=True) if number is not None]
        return Text(words, [number for number, _ in known], [run for _, run in known])

    def _ms_batch(self, texts: list[Text]) -> TextBatch:
        ids = [number for text in texts for number in text.ids]
        starts = list(accumulate((len(text.ids) for text in texts), initial=0))[:-1]
        return TextBatch(
            torch.tensor(ids, dtype=torch.int64, device=self.device),
            torch.tensor(starts, dtype=torch.int64, device=self.device),
            texts,
        )


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ModelLoadError(f"sourceVocab must be a file of the archive, got {name!r}")
    return path


def _insight(text: Text, attributions: list[float]) -> dict[str, Any]:
    importances = [0.0] * len(text.words)
    for (start, end), attribution in zip(text.runs, attributions, strict=True):
        for position in range(start, end):
            importances[position] += attribution / (end - start)
    return {"importances": importances, "words": text.words}
