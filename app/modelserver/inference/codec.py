"""How a protocol turns a request into rows, and their answers into a response; for REST and gRPC alike.

A codec reads a body, or a message, into :class:`Asked`: its rows, what they must have in common to share a
batch, and its timeout. The rest, such as which failure the client gets, is the same for all protocols.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - helpers read annotations at run time
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec
from msgspec import Raw

from modelserver.batching.queue import AtOnce
from modelserver.batching.request import Request
from modelserver.batching.sequences import SequencedRequest
from modelserver.errors import HandlerError, InternalError, ModelServerError
from modelserver.http.content import read_query
from modelserver.inference.sequences import read_sequence
from modelserver.wire.messages import BODY, Row

if TYPE_CHECKING:
    from modelserver.http.exchange import Exchange
    from modelserver.inference.routes import Route
    from modelserver.models.version import ModelVersion
    from modelserver.offload.helpers import Helpers
    from modelserver.tensors.limits import RequestLimits
    from modelserver.wire.messages import Answer

# CPU time that a helper may use for one request or answer.
SECONDS = 10.0

# An empty list of headers in msgpack.
NO_HEADERS = b"\x90"

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Asked(msgspec.Struct):
    """A request as rows of work. In this class it is one unchanged body, and its row's answer is the answer.

    ``kind`` and ``content_type`` are those of the rows' bytes, ``extra`` is sent with each row. Requests with
    equal ``key`` share batches; it is empty for those that share them with predictions. ``timeout`` is the
    client's, in seconds, or None. ``sequence`` is the request's statement about its sequence, as headers.
    """

    bodies: Sequence[bytes]
    kind: int = BODY
    content_type: str = ""
    query: list[tuple[str, str]] | None = None
    url_path: str = ""
    extra: bytes = b""
    key: bytes = b""
    timeout: float | None = None
    sequence: Sequence[tuple[bytes, bytes]] = ()

    # Whether the rows' answers are joined, and then the name of a failed row in errors.
    joins: ClassVar[bool] = False
    where: ClassVar[str] = ""

    def make_request(  # noqa: PLR0917 - called for each request
        self,
        model: ModelVersion,
        request_id: str,
        packed: bytes,
        now: float,
        left: float | None,
        explain: bool,
    ) -> Request:
        """The request for the model's queue. ``packed`` are the headers, ``left`` is the call's timeout.

        The smallest timeout, of the model, the call and the request, takes effect.
        """
        names = model.sequence_headers
        if names is not None:
            mark, packed = read_sequence(self.headers(packed), names)
        headers, bodies = Raw(packed), self.bodies
        rows: list[Row] = []
        for body in bodies:
            rows.append(  # noqa: PERF401 - most have one, for which a comprehension costs more than the row
                Row(
                    request_id, len(body), self.kind, self.content_type, headers, self.query, self.url_path,
                    explain, self.extra,
                )
            )  # fmt: skip
        key: object = (explain, self.key)
        if explain:
            key = AtOnce(key)
        seconds = model.options.request_timeout
        if left is not None or self.timeout is not None:
            seconds = min(bound for bound in (seconds, left, self.timeout) if bound is not None)
        deadline = None if seconds is None else now + seconds
        if names is None:
            return Request(request_id, rows, bodies, now, key=key, deadline=deadline)
        return SequencedRequest(request_id, rows, bodies, now, mark, key=key, deadline=deadline)

    def headers(self, packed: bytes) -> bytes:
        """The client's headers (msgpack of [[name, value], ...]) with those of its sequence."""
        return _pack([*_unpack(packed), *self.sequence]) if self.sequence else packed

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        """Body, content type and further header lines of the response over REST.

        Raises:
            ModelServerError: there is no valid response to the answers.
            TooHeavy: use :meth:`encode_aside`.
        """
        (content,) = contents_of(request)
        return content, "", b""

    async def encode_aside(
        self, model: ModelVersion, request: Request, helpers: Helpers
    ) -> tuple[bytes, str, bytes]:
        """The same in a helper."""
        return self.encode(model, request)


def failure_of(request: Request, where: str = "") -> ModelServerError | None:
    """The error of an ended request, or of its first failed row, which ``where`` names; None without one.

    It is not raised here: request and error would form a reference cycle.
    """
    error = request.error
    if error is not None:
        return error if isinstance(error, ModelServerError) else InternalError(str(error))
    for index, (answer, content) in enumerate(cast("list[tuple[Answer, bytes]]", request.answers)):
        if answer.failed:
            prefix = (where % index).encode() if where and len(request.rows) > 1 else b""
            return HandlerError.of(answer, prefix + content, whole=request.rows[0].kind == BODY)
    return None


def contents_of(request: Request) -> list[bytes]:
    """The answers to the rows of a request without a failure."""
    return [content for _, content in cast("list[tuple[Answer, bytes]]", request.answers)]


class Codec:
    """A protocol over REST; this class is TorchServe's, where a body is one row.

    Args:
        limits: of one request.
        helpers: for work that would block the event loop.
    """

    # Whether errors name the batch of a request to a model that batches.
    tells_batch: ClassVar[bool] = False

    def __init__(self, limits: RequestLimits, helpers: Helpers) -> None:
        self._limits = limits
        self._helpers = helpers

    def read(self, exchange: Exchange, model: ModelVersion) -> Asked:
        """The exchange's request to the model.

        Raises:
            BadRequest: says what is wrong.
            PayloadTooLarge: too many rows.
            TooHeavy: use :meth:`read_aside`.
        """
        route: Route = exchange.target.route
        query = read_query(exchange.target.query) if route.query else None
        return Asked([exchange.body], BODY, exchange.content_type, query, route.url_path)

    async def read_aside(self, exchange: Exchange, model: ModelVersion) -> Asked:
        """The same in a helper."""
        return Codec.read(self, exchange, model)

    def fail(
        self,
        exchange: Exchange,
        error: ModelServerError,
        model: ModelVersion | None = None,
        batch_id: str = "",
        extra: bytes = b"",
    ) -> None:
        """Answers with an error; ``extra`` are further header lines."""
        told = batch_id if self.tells_batch and model is not None and model.batches else None
        exchange.fail(error, kserve=exchange.target.route.kserve, extra=extra, batch_id=told)
