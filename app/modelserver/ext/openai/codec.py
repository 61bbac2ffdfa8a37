"""Requests of OpenAI's API, for the queues of the models that their bodies name.

Chats and completions go to the handler as they are, with their endpoint as ``url_path``. Inputs of embeddings
and pairs of texts become rows where the handler takes them so, and then share batches with those of others.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from modelserver.engine.tensors.weight import TooHeavy
from modelserver.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    PayloadTooLarge,
    ServiceUnavailable,
)
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.codec import Codec, Parsed

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.ext.openai.meters import LanguageMeters
    from modelserver.models.version import ModelVersion
    from modelserver.surface.http.exchange import Exchange
    from modelserver.surface.inference.routes import Route

NAME: Final = "openai"
EMBEDDINGS: Final = "v1/embeddings"
RERANK: Final = "v1/rerank"
SCORE: Final = "v1/score"
ENDPOINTS: Final = ("chat/completions", "completions", "embeddings", "rerank", "score")
PATHS: Final = (
    r"(?:/openai|/predictions/(?P<model>[^/]+)(?:/(?P<version>(?!v1/)[^/]+))?)?"
    rf"/(?P<url_path>v1/(?:{'|'.join(ENDPOINTS)}|(?(model)models|(?!))))/?"
)
"""``/v1/…``, ``/openai/v1/…``, and TorchServe's ``/predictions/NAME[/VERSION]/v1/…``.

Only there a handler lists its models.
"""

MODELS: Final = "v1/models"
# These are never split.
_WHOLE: Final = ("v1/chat/completions", "v1/completions")
# The keys that bodies of split endpoints may have; an application in the worker may accept more.
_KNOWN: Final = {
    EMBEDDINGS: {"model", "user", "input", "encoding_format", "dimensions"},
    RERANK: {"model", "user", "query", "documents", "top_n", "return_documents"},
    SCORE: {"model", "user", "text_1", "text_2"},
}
# The type of a body without a content type: the handler gets its bytes.
_OCTETS: Final = "application/octet-stream"
# CPU time that a helper may use for one body.
_SECONDS: Final = 10.0
# Encoded bytes of a text that is repeated for each of its pairs, in all of them; and on the event loop.
_MOST_REPEATED: Final = 64 << 20
_LIGHT_REPEATED: Final = 1 << 20
# Separates a model's name from its version in the body's ``model``.
_VERSION: Final = ":"
# Separates a model's name from the name of one of its adapters.
_ADAPTER: Final = "/"


class _Named(msgspec.Struct):
    model: str = ""


class _EmbeddingBody(msgspec.Struct):
    input: msgspec.Raw
    encoding_format: str | None = "float"
    dimensions: int | None = None


class _Document(msgspec.Struct):
    text: str


class _RerankBody(msgspec.Struct):
    query: str
    documents: list[str | _Document]
    top_n: int | None = None
    return_documents: bool | None = None


class _ScoreBody(msgspec.Struct):
    text_1: str | list[str]
    text_2: str | list[str]


_decode_each = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_embedding = msgspec.json.Decoder(_EmbeddingBody).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_rerank = msgspec.json.Decoder(_RerankBody).decode
_decode_score = msgspec.json.Decoder(_ScoreBody).decode
_encode = msgspec.json.encode


class _Row(msgspec.Struct):
    """What a handler answers to a row: a vector or a score, and how many tokens the row had.

    ``query_tokens``: those of the first text of a pair, where the model reads it by itself.
    """

    tokens: int = 0
    query_tokens: int = 0
    embedding: msgspec.Raw = msgspec.Raw(b"null")
    score: float = 0.0


_decode_row = msgspec.json.Decoder(_Row).decode


class Rows(Parsed, tag=True):
    """The inputs of a request as rows, whose answers become one document.

    The tags keep the kinds apart on the way from a helper.
    """

    joins: ClassVar[bool] = True
    where: ClassVar[str] = "input[%d]: "

    # A TokenMeter, where requests are measured.
    meter: Any = None
    # All pairs have the same first text.
    has_one_query: bool = False

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        try:
            rows = [_decode_row(content) for content in request.contents()]
        except msgspec.DecodeError as error:
            raise InternalError(f"The handler's answer to a row cannot be read: {error}") from None
        if self.meter is not None:
            self.meter.tokens = self.count(rows)
        return self.document(rows, model.name, request.id), JSON, b""

    def count(self, rows: list[_Row]) -> int:
        """The tokens that the model has read: a query that it reads by itself is read once."""
        queries = [row.query_tokens for row in (rows[:1] if self.has_one_query else rows)]
        return sum(row.tokens for row in rows) + sum(queries)

    def usage(self, rows: list[_Row]) -> dict[str, int]:
        """Returns the counts of tokens in the form that clients receive."""
        tokens = self.count(rows)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    def document(self, rows: list[_Row], model: str, request_id: str) -> bytes:
        """The document of these answers."""
        data = [
            b'{"object":"embedding","index":%d,"embedding":%b}' % (index, bytes(row.embedding))
            for index, row in enumerate(rows)
        ]
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
            b",".join(data),
            _encode(model),
            _encode(self.usage(rows)),
        )


class Scores(Rows):
    """Pairs of texts, whose scores become a list."""

    def document(self, rows: list[_Row], model: str, request_id: str) -> bytes:
        data = [{"index": index, "object": "score", "score": row.score} for index, row in enumerate(rows)]
        head = {"id": f"score-{request_id}", "object": "list", "created": int(time.time()), "model": model}
        return _encode({**head, "data": data, "usage": self.usage(rows)})


class Ranking(Rows, kw_only=True):
    """Documents with a query, which are sorted by their scores."""

    documents: list[str]
    top_n: int | None = None
    returns_documents: bool = True

    def document(self, rows: list[_Row], model: str, request_id: str) -> bytes:
        order = sorted(range(len(rows)), key=lambda index: -rows[index].score)[: self.top_n]
        results: list[dict[str, Any]] = [{"index": at, "relevance_score": rows[at].score} for at in order]
        if self.returns_documents:
            for result in results:
                result["document"] = {"text": self.documents[result["index"]]}
        head = {"id": f"rerank-{request_id}", "model": model}
        return _encode({**head, "results": results, "usage": self.usage(rows)})


class OpenAI(Codec):
    """The protocol of OpenAI's clients. ``meters`` measures the requests."""

    def __init__(self, *arguments: Any, meters: LanguageMeters | None = None) -> None:
        super().__init__(*arguments)
        self._meters = meters

    def address(self, exchange: Exchange) -> None:
        if exchange.method != b"POST":
            raise MethodNotAllowed("POST")
        route: Route = exchange.target.route
        name = _decode(_decode_named, exchange.body).model
        # What follows the name is the handler's: an adapter.
        model, _, version = name.partition(_ADAPTER)[0].partition(_VERSION)
        if not model:
            raise BadRequest("model is missing: it names the model that is to answer")
        route = replace(route, model=model, version=version or None)
        exchange.target = replace(exchange.target, route=route)

    def ending(self, error: bytes) -> bytes | None:
        return b"data: %b\n\n" % error

    def read(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        return self._measured(exchange, self._read(exchange, model))

    def _measured(self, exchange: Exchange, parsed: Parsed) -> Parsed:
        if self._meters is not None:
            meter = self._meters.watch(exchange)
            if isinstance(parsed, Rows):
                parsed.meter = meter
        return parsed

    def _read(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        if (whole := self._whole(exchange, model)) is not None:
            return whole
        self.check_light(exchange.body)
        if self._is_for_application(exchange, model):
            return super().read(exchange, model)
        return _split(exchange.target.route.url_path, exchange.body, light=True)

    def _whole(self, exchange: Exchange, model: ModelVersion) -> Parsed | None:
        """The request as one row, where that is known without reading its body."""
        route: Route = exchange.target.route
        endpoint, endpoints = route.url_path, model.endpoints
        if not endpoints:
            if "/predictions/" in exchange.target.path:
                # A handler of TorchServe's that reads the path, or one of ours that lists its models.
                parsed = super().read(exchange, model)
                parsed.key = endpoint.encode() if endpoint == MODELS else b""
                return parsed
            if not model.pool.ready and (endpoint in _WHOLE or not model.pool.workers):
                # It waits in the queue while the model loads; without a worker it is refused there.
                return Parsed([exchange.body], content_type=_OCTETS, url_path=endpoint)
            if not model.pool.ready:
                raise ServiceUnavailable(model.pool.failure or f"Model {model.name} is still loading.")
        if endpoint not in endpoints:
            if model.pool.dispatch.takes_scopes:
                # The ASGI application in the worker has this endpoint.
                return super().read(exchange, model)
            if endpoint == MODELS:
                return Parsed([b""], content_type=_OCTETS, url_path=endpoint, key=endpoint.encode())
            raise BadRequest(_not_offered(model.name, endpoint, endpoints))
        if not endpoints[endpoint]:
            return Parsed([exchange.body], content_type=_OCTETS, url_path=endpoint)
        return None

    def _is_for_application(self, exchange: Exchange, model: ModelVersion) -> bool:
        """Whether only the ASGI application in the worker knows the adapter or a field of the body.

        Raises ModelNotFound for an adapter where there is no application.
        """
        adapter = _adapter_of(exchange.body, model.name)
        if model.pool.dispatch.takes_scopes:
            return bool(adapter) or not _is_plain(exchange.target.route.url_path, exchange.body)
        if adapter:
            raise ModelNotFound.named(f"{model.name}/{adapter}")
        return False

    async def read_off_loop(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        parsed = self._whole(exchange, model)
        if parsed is None and await asyncio.to_thread(self._is_for_application, exchange, model):
            parsed = super().read(exchange, model)
        if parsed is None:
            endpoint = exchange.target.route.url_path
            parsed = await self._helpers.call(_SECONDS, split, endpoint, exchange.body)
        return self._measured(exchange, parsed)


def _adapter_of(body: bytes, model: str) -> str:
    """The adapter that a body names behind the model."""
    own, _, adapter = _decode(_decode_named, body).model.partition(_ADAPTER)
    return adapter if own.partition(_VERSION)[0] == model else ""


def _is_plain(endpoint: str, body: bytes) -> bool:
    """Whether a request has only fields that rows have."""
    return not _decode(_decode_each, body).keys() - _KNOWN[endpoint]


def _not_offered(model: str, endpoint: str, endpoints: dict[str, bool]) -> str:
    offered = ", ".join(f"/{each}" for each in sorted(endpoints)) or "none of this API's endpoints"
    return f"The model `{model}` does not serve /{endpoint}; it serves {offered}."


def split(endpoint: str, body: bytes) -> Rows | Scores | Ranking:
    """The rows of a request. Raises BadRequest, which names the field, and PayloadTooLarge."""
    return _split(endpoint, body, light=False)


def _split(endpoint: str, body: bytes, *, light: bool) -> Rows | Scores | Ranking:
    """The rows of a request. Raises TooHeavy, only if ``light``, if a text would be repeated for long."""
    if endpoint == EMBEDDINGS:
        return _split_embeddings(body)
    return _split_ranking(body, light=light) if endpoint == RERANK else _split_scores(body, light=light)


def _split_embeddings(body: bytes) -> Rows:
    request = _decode(_decode_embedding, body)
    encoding = request.encoding_format or "float"
    if encoding not in ("float", "base64"):
        raise BadRequest("encoding_format must be float or base64")
    raw = bytes(request.input).strip()
    inputs = [raw]
    if raw[:1] == b"[":
        each = [bytes(one) for one in _decode_list(raw)]
        if not each:
            raise BadRequest("input is empty")
        # A list of numbers is one input of token ids.
        inputs = [raw] if each[0][:1].isdigit() else each
    options: dict[str, Any] = {} if encoding == "float" else {"encoding_format": "base64"}
    if request.dimensions is not None:
        options["dimensions"] = request.dimensions
    extra = _encode(options) if options else b""
    return Rows.of_json(inputs, url_path=EMBEDDINGS, extra=extra, key=EMBEDDINGS.encode() + extra)


def _split_ranking(body: bytes, *, light: bool) -> Ranking:
    request = _decode(_decode_rerank, body)
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    if not texts:
        raise BadRequest("documents is empty")
    if request.top_n is not None and request.top_n < 1:
        raise BadRequest("top_n must be at least 1")
    _check_repeated(request.query, len(texts), light=light)
    return Ranking.of_json(
        [_encode((request.query, text)) for text in texts],
        url_path=RERANK,
        key=RERANK.encode(),
        has_one_query=True,
        documents=texts,
        top_n=request.top_n,
        returns_documents=request.return_documents is not False,
    )


def _split_scores(body: bytes, *, light: bool) -> Scores:
    request = _decode(_decode_score, body)
    left = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    right = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    has_one_query = len(left) == 1
    if has_one_query:
        _check_repeated(left[0], len(right), light=light)
        left = left * len(right)
    if not left or len(left) != len(right):
        raise BadRequest(f"text_1 has {len(left)} texts and text_2 {len(right)}: one, or as many, are needed")
    pairs = [_encode(pair) for pair in zip(left, right, strict=True)]
    key = SCORE.encode()
    return Scores.of_json(pairs, url_path=SCORE, key=key, has_one_query=has_one_query)


def _check_repeated(text: str, count: int, *, light: bool) -> None:
    """Raises PayloadTooLarge if the text of so many pairs would take too much memory, or TooHeavy."""
    # Encoded, a character has up to six bytes.
    size = len(_encode(text))
    if size * count > _MOST_REPEATED:
        raise PayloadTooLarge(
            f"A text of {size} bytes in each of {count} pairs is more than the {_MOST_REPEATED} "
            "that are allowed in total; send fewer pairs at once."
        )
    if light and size * count > _LIGHT_REPEATED:
        raise TooHeavy


def _decode(decode: Any, body: bytes) -> Any:
    """Raises BadRequest for a body that is not JSON, or not of this kind."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body cannot be read: {error or 'it is nested too deep'}") from None
