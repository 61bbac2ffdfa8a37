"""``modelserver.EmbeddingModel`` and ``Reranker``: inputs of several clients share batches."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from modelserver_handlers.errors import BadInput, PredictionException
from modelserver_handlers.language.responses import MODELS, listed_models
from modelserver_handlers.typed.handler import HandlerSignature
from modelserver_handlers.typed.reading import Read, reader_of
from modelserver_handlers.typed.signature import described

EMBEDDINGS: Final = "v1/embeddings"
RERANK: Final = "v1/rerank"
SCORE: Final = "v1/score"


class RowModel:
    """A model with one result for each input of a batch."""

    context: Any
    # The endpoints of the inputs, each of which is a row; the types of a row and of its result.
    _ms_endpoints: ClassVar[dict[str, bool]] = {}
    _ms_row: ClassVar[Any] = None
    _ms_result: ClassVar[Any] = None

    def load(self, context: Any) -> None:
        """Called once, before the first batch."""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, for the usage; by default its words."""
        return len(text.split())

    def initialize(self, context: Any) -> None:
        self.context = context
        self.load(context)

    def handle(self, data: Any, context: Any) -> list[Any]:
        """Answers a batch; rows that cannot be read are rejected, and the others go on."""
        self.context = context
        if context.get_request_header(0, "url_path") == MODELS:
            return [listed_models([str(context.model_name)])] * len(data)
        read, rows = self._ms_reader(), dict[int, Any]()
        for idx, row in enumerate(data):
            try:
                rows[idx] = read(row)
            except BadInput as error:  # noqa: PERF203 - each row fails alone
                context.reject(idx, str(error), 400)
        results = self._ms_compute(list(rows.values())) if rows else ()
        if len(results) != len(rows):
            raise PredictionException(f"{len(results)} results came for {len(rows)} inputs", 500)
        answers: list[Any] = [None] * len(data)
        for (idx, row), result in zip(rows.items(), results, strict=True):
            try:
                answers[idx] = self._ms_answer(idx, row, result)
            except BadInput as error:  # noqa: PERF203 - as above
                context.reject(idx, str(error), 400)
            except PredictionException as error:
                context.reject(idx, error.message, error.error_code)
        return answers

    def _ms_reader(self) -> Read:
        return reader_of(self._ms_row)

    def _ms_compute(self, rows: list[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def _ms_answer(self, idx: int, row: Any, result: Any) -> Any:
        raise NotImplementedError

    def _ms_signature(self) -> HandlerSignature:
        return HandlerSignature(described(self._ms_row, "input_0"), described(self._ms_result, "output_0"))

    def _ms_is_of_openai(self, idx: int) -> bool:
        return (self.context.get_request_header(idx, "url_path") or "") in self._ms_endpoints


class EmbeddingModel(RowModel):
    """Override ``embed``, and ``load`` for what it needs.

    It serves ``/v1/embeddings``, and ``/predictions`` with a text each. Texts of several clients share a
    batch of at most ``batch_size``.
    """

    _ms_endpoints: ClassVar[dict[str, bool]] = {EMBEDDINGS: True}
    _ms_row: ClassVar[Any] = str
    _ms_result: ClassVar[Any] = list[float]

    def embed(self, texts: list[str]) -> Any:
        """An array of numbers for each text: numpy's or torch's, or lists."""
        raise NotImplementedError

    def _ms_compute(self, rows: list[Any]) -> Sequence[Any]:
        vectors: Sequence[Any] = _as_array(self.embed(rows))
        return vectors

    def _ms_answer(self, idx: int, row: str, result: Any) -> Any:
        # One number that is infinite or NaN makes the sum so.
        require_finite(float(result.sum()))
        if not self._ms_is_of_openai(idx):
            return result.tolist()
        parameters = self.context.get_request_parameters(idx)
        size = parameters.get("dimensions")
        if size is not None:
            result = _shortened(result, size)
        return embedding_answer(result, parameters, self.count_tokens(row))


def embedding_answer(vector: Any, parameters: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """A vector in the form that the client asks for, and how many tokens its text has."""
    as_text = parameters.get("encoding_format") == "base64"
    values = base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
    return {"embedding": values, "tokens": tokens}


def require_finite(result: float) -> None:
    """Raises PredictionException for what JSON cannot hold."""
    if not math.isfinite(result):
        raise PredictionException(f"The model's result is {result}, which is no finite number.", 500)


def _as_array(vectors: Any) -> Any:
    """Float32 in an array of numpy, one row for each text."""
    import numpy  # noqa: PLC0415 - where vectors are computed

    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().float().numpy()
    return numpy.ascontiguousarray(vectors, dtype="<f4")


def _shortened(vector: Any, size: Any) -> Any:
    """The first ``size`` numbers, of length 1 again."""
    import numpy  # noqa: PLC0415 - where vectors are computed

    if not isinstance(size, int) or not 0 < size <= len(vector):
        raise BadInput(f"dimensions must be from 1 to {len(vector)}, and is {size}")
    vector = vector[:size]
    length = float(numpy.linalg.norm(vector))
    return vector / length if length else vector


class Reranker(RowModel):
    """Override ``rerank``, and ``load`` for what it needs.

    It serves ``/v1/rerank`` and ``/v1/score``. Pairs of several clients share a batch of at most
    ``batch_size``.
    """

    _ms_endpoints: ClassVar[dict[str, bool]] = {RERANK: True, SCORE: True}
    _ms_row: ClassVar[Any] = tuple[str, str]
    _ms_result: ClassVar[Any] = float

    def rerank(self, pairs: list[tuple[str, str]]) -> Any:
        """A number for each pair of a query and a document: how well they fit."""
        raise NotImplementedError

    def _ms_compute(self, rows: list[Any]) -> Sequence[Any]:
        return [float(score) for score in self.rerank(rows)]

    def _ms_answer(self, idx: int, row: tuple[str, str], result: Any) -> Any:
        require_finite(result)
        if not self._ms_is_of_openai(idx):
            return result
        return {"score": result, "tokens": sum(map(self.count_tokens, row))}
