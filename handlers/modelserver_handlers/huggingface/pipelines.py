"""Tasks that pipelines of transformers do, here for batches: classification, detection, fill-mask, speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Final

import torch

from modelserver_handlers.errors import BadInput, ModelLoadError, PredictionException, first_line
from modelserver_handlers.huggingface.batches import groups_by_length
from modelserver_handlers.huggingface.checkpoint import (
    Checkpoint,
    check_tokenizer,
    import_transformers,
    length_of,
)
from modelserver_handlers.huggingface.inputs import picture, read_inputs, sound, text
from modelserver_handlers.language.embedding import RowModel
from modelserver_handlers.typed.reading import content_of


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """What rows of a task are, and the parameters of its pipeline if the client names none.

    ``allows``: those that a client may name.
    """

    kind: str
    usual: Mapping[str, Any] = field(default_factory=dict)
    allows: tuple[str, ...] = ("top_k",)


_CUT: Final = {"truncation": True}
TASKS: Final[dict[str, PipelineTask]] = {
    "text-classification": PipelineTask("text", {"top_k": 1, **_CUT}),
    "token-classification": PipelineTask("text", {}, ("aggregation_strategy",)),
    "fill-mask": PipelineTask("text", {"tokenizer_kwargs": _CUT}),
    "image-classification": PipelineTask("picture"),
    "object-detection": PipelineTask("picture", {}, ("threshold",)),
    "audio-classification": PipelineTask("sound", {"top_k": 5}),
    "automatic-speech-recognition": PipelineTask("sound", {}, ("return_timestamps",)),
}
_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "top_k": (lambda value: type(value) is int and 0 < value <= 1000, "a number from 1 to 1000"),
    "threshold": (lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1"),
    "aggregation_strategy": (
        ("none", "simple", "first", "average", "max").__contains__,
        "none, simple, first, average or max",
    ),
    "return_timestamps": ((True, False, "word", "char").__contains__, "true, false, word or char"),
}


@dataclass(frozen=True, slots=True)
class _Row:
    value: Any
    parameters: tuple[tuple[str, Any], ...]


class TaskPipeline(RowModel):
    """Answers as the pipeline of transformers for ``handler: {task: …}`` does.

    The rows of a batch share calls of the network if they have the same parameters, and about the same
    length; pictures for a detection, and sound, exactly the same.
    """

    device: torch.device
    _ms_endpoints: ClassVar[dict[str, bool]] = {}

    def load(self, context: Any) -> None:
        """Loads the pipeline. Raises ModelLoadError, also for a task that is unknown."""
        checkpoint = Checkpoint.of(context)
        self.device, name = checkpoint.device, str(checkpoint.settings.get("task"))
        if name not in TASKS:
            raise ModelLoadError(f"handler: task must be one of {', '.join(TASKS)}, got {name}")
        self._task = TASKS[name]
        library = import_transformers()
        with checkpoint.loading() as arguments:
            dtype = arguments.pop("dtype")
            self._pipeline = library.pipeline(
                name,
                model=checkpoint.path,
                device=self.device,
                dtype=dtype,
                trust_remote_code=checkpoint.trusts_code,
                model_kwargs=arguments,
            )
        # ValueError: timestamps of a kind that the model of speech does not have.
        more = (ValueError,) if self._task.kind == "sound" else ()
        self._failures = (library.pipelines.base.PipelineException, *more)
        tokenizer = self._pipeline.tokenizer
        if self._task.kind == "text":
            check_tokenizer(tokenizer)
            limit = length_of(tokenizer, self._pipeline.model.config)
            tokenizer.model_max_length = limit or tokenizer.model_max_length
        self._is_padded = tokenizer is None or tokenizer.pad_token_id is not None
        self._reader = self._choose_reader()

    def _choose_reader(self) -> Callable[[Any], Any]:
        if self._task.kind != "sound":
            return text if self._task.kind == "text" else picture
        convert = import_module("transformers.pipelines.audio_utils").ffmpeg_read
        return partial(sound, rate=self._pipeline.feature_extractor.sampling_rate, convert=convert)

    def _ms_reader(self) -> Callable[[Any], _Row]:
        return self._read_row

    def _read_row(self, row: Any) -> _Row:
        value, parameters = read_inputs(content_of(row))
        for name, each in parameters.items():
            if name not in self._task.allows:
                raise BadInput(f"parameters: {name} is not one of {', '.join(self._task.allows)}")
            is_right, values = _CHECKS[name]
            if not is_right(each):
                raise BadInput(f"parameters: {name} must be {values}")
        return _Row(self._reader(value), tuple(sorted(parameters.items())))

    def _ms_compute(self, rows: list[_Row]) -> Sequence[Any]:
        results: list[Any] = [None] * len(rows)
        alike: dict[Any, list[int]] = {}
        for place, row in enumerate(rows):
            alike.setdefault((row.parameters, self._size(row.value)), []).append(place)
        for places in alike.values():
            lengths = [len(str(rows[place].value)) if self._task.kind == "text" else 1 for place in places]
            for group in groups_by_length(lengths, short=128):
                chosen = [places[each] for each in group]
                outputs = self._run([rows[place] for place in chosen])
                for place, output in zip(chosen, outputs, strict=True):
                    results[place] = _plain(output)
        return results

    def _run(self, rows: list[_Row]) -> list[Any]:
        arguments = {**self._task.usual, **dict(rows[0].parameters)}
        values = [row.value for row in rows]
        try:
            with torch.inference_mode():
                if len(values) == 1 or not self._is_padded:
                    return [self._pipeline(value, **arguments) for value in values]
                return list(self._pipeline(values, batch_size=len(values), **arguments))
        except self._failures as error:
            raise PredictionException(first_line(error), 400) from None

    def _ms_answer(self, idx: int, row: _Row, result: Any) -> Any:
        return result

    def _size(self, value: Any) -> Any:
        """What only rows of one call have in common."""
        if self._task.kind == "sound":
            extractor = self._pipeline.feature_extractor
            # Shorter sound is padded to this, and longer sound is cut by those with a `max_length`.
            most = len(value) if hasattr(extractor, "max_length") else getattr(extractor, "n_samples", 0)
            return None if len(value) <= most else len(value)
        # Detection keeps the shape of pictures, classification has one for all.
        return value.size if "threshold" in self._task.allows else None


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's, for JSON."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value
