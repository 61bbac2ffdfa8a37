"""How a protocol turns a request into rows, and their answers into a response; for REST and gRPC alike.

A codec reads a body, or a message, into :class:`Parsed`: its rows, what they must have in common to share a
batch, and its timeout. The rest, such as which failure the client gets, is the same for all protocols.
Helpers import the codecs, so these import little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from modelserver.engine.tensors.weight import TooHeavy, is_heavy_json
from modelserver.engine.wire.messages import BODY, FIELDS, INSTANCE
from modelserver.surface.http.answers import JSON
from modelserver.surface.http.exchange import Exchange, read_query
from modelserver.surface.inference.scopes import OCTETS, scope_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from modelserver.engine.batching.request import Request
    from modelserver.engine.offload.helpers import Helpers
    from modelserver.engine.tensors.limits import RequestLimits
    from modelserver.engine.tensors.shared_memory import SharedMemory
    from modelserver.errors import ModelServerError
    from modelserver.models.version import ModelVersion
    from modelserver.surface.inference.routes import Route

# CPU time that a helper may use for one request or answer.
SECONDS = 10.0

_pack = msgspec.msgpack.Encoder().encode


class Parsed(msgspec.Struct):
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

    @classmethod
    def of_fields(cls, fields: Mapping[str, bytes], sequence: Sequence[tuple[bytes, bytes]] = ()) -> Parsed:
        """A request whose one row has these values by name."""
        return cls([_pack(fields)], FIELDS, sequence=sequence)

    @classmethod
    def of_json(cls, values: Sequence[bytes], **fields: Any) -> Self:
        """A request whose rows are JSON values, and whose other fields are these."""
        return cls(values, INSTANCE, JSON, **fields)

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        """Body, content type and further header lines of the response over REST; only if answers are joined.

        Raises:
            ModelServerError: there is no valid response to the answers.
            TooHeavy: use :meth:`encode_off_loop`.
        """
        raise NotImplementedError

    async def encode_off_loop(
        self, model: ModelVersion, request: Request, helpers: Helpers
    ) -> tuple[bytes, str, bytes]:
        """What :meth:`encode` returns, encoded by a helper process."""
        raise NotImplementedError


class Codec:
    """A protocol over REST; this class is TorchServe's, where a body is one row.

    Args:
        limits: of one request.
        helpers: for work that would block the event loop.
        shared: memory that clients have registered.
    """

    # Whether errors name the batch of a request to a model that batches.
    names_batch: ClassVar[bool] = False

    def __init__(self, limits: RequestLimits, helpers: Helpers, shared: SharedMemory | None = None) -> None:
        self._limits = limits
        self._shared = shared
        self._helpers = helpers

    def address(self, exchange: Exchange) -> None:
        """Gives the exchange a target that names the model, if its path does not and its body does.

        Raises BadRequest, or TooHeavy.
        """

    @staticmethod
    def check_light(body: bytes) -> None:
        """Raises TooHeavy if reading this JSON would take long."""
        if is_heavy_json(body):
            raise TooHeavy

    def ending(self, error: bytes) -> bytes | None:
        """The last event of a stream of events that fails, with the document of the error.

        None: its connection is closed instead.
        """
        return None

    def read(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        """The exchange's request to the model.

        Raises:
            BadRequest: says what is wrong.
            PayloadTooLarge: too many rows.
            TooHeavy: use :meth:`read_off_loop`.
        """
        route: Route = exchange.target.route
        if model.pool.dispatch.takes_scopes:
            return Parsed([exchange.body], BODY, OCTETS, url_path=route.url_path, extra=scope_of(exchange))
        query = read_query(exchange.target.query) if route.query else None
        return Parsed([exchange.body], BODY, exchange.content_type, query, route.url_path)

    async def read_off_loop(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        """What :meth:`read` returns, read by a helper process if that raises TooHeavy."""
        return self.read(exchange, model)

    def fail(
        self,
        exchange: Exchange,
        error: ModelServerError,
        model: ModelVersion | None = None,
        batch_id: str = "",
        extra: bytes = b"",
    ) -> None:
        """Answers with an error; ``extra`` are further header lines."""
        batch = batch_id if self.names_batch and model is not None and model.batches else None
        exchange.fail(error, form=exchange.target.route.form, extra=extra, batch_id=batch)
