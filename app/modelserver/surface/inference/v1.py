"""KServe's V1 bodies: split into instances without decoding them, and joined (kserve reference 1 and 4).

Instances keep the client's bytes: numbers of any size stay unchanged, nothing is reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from modelserver.engine.tensors.limits import RequestLimits
from modelserver.errors import BadRequest
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.codec import SECONDS, Codec, Parsed

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.models.version import ModelVersion
    from modelserver.surface.http.exchange import Exchange


class _InstancesOnly(msgspec.Struct, forbid_unknown_fields=True):
    """The usual body; others are decoded more slowly."""

    instances: list[msgspec.Raw]


_decode_usual = msgspec.json.Decoder(_InstancesOnly).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Instances(Parsed):
    """A split body: the instances as JSON; other top-level fields as a JSON object, or nothing."""

    joins: ClassVar[bool] = True
    where: ClassVar[str] = "instances[%d]: "

    @classmethod
    def of(cls, instances: list[msgspec.Raw], extra: bytes = b"") -> Instances:
        """Raises BadRequest if there are none."""
        if not instances:
            raise BadRequest("no instances in the request: the list is empty")
        return cls.of_json([bytes(instance) for instance in instances], extra=extra, key=extra)

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        key = b"explanations" if request.rows[0].explain else b"predictions"
        batch_id = request.batch_id if model.batches else None
        return join(request.contents(), batch_id, key), JSON, b""


class V1(Codec):
    """KServe's V1; some models take its bodies unsplit (design section 9, "Rows")."""

    names_batch: ClassVar[bool] = True

    def read(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        if not model.splits:
            return super().read(exchange, model)
        self.check_light(exchange.body)
        return split(exchange.body)

    async def read_off_loop(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        if not model.splits:
            return await super().read_off_loop(exchange, model)
        return await self._helpers.call(SECONDS, split_off_loop, exchange.body, self._limits)


def split(body: bytes) -> Instances:
    """Splits a body; ``inputs`` is another name for ``instances``.

    Raises:
        BadRequest: not a JSON object, or no instances. The messages begin with KServe's phrases.
    """
    try:
        usual = _decode_usual(body)
    except msgspec.ValidationError:
        return _split_fields(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    return Instances.of(usual.instances)


def split_off_loop(body: bytes, limits: RequestLimits) -> Instances:
    """What helpers call. Raises BadRequest, PayloadTooLarge for too many instances."""
    apart = split(body)
    limits.check_instances(len(apart.bodies), len(apart.extra))
    return apart


def _split_fields(body: bytes) -> Instances:
    try:
        fields = _decode_fields(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    raw = fields.pop("instances", None)
    if raw is None or bytes(raw).strip() == b"null":
        raw = fields.pop("inputs", None)
    if raw is None or bytes(raw).strip() == b"null":
        raise BadRequest(
            'no instances in the request: the body needs "instances", a list of at least one instance'
        )
    try:
        instances = _decode_list(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f'can\'t Unmarshal body: Expected "instances" to be a list ({error})') from error
    extra = msgspec.json.encode(dict(sorted(fields.items()))) if fields else b""
    return Instances.of(instances, extra)


def _unreadable(error: Exception) -> BadRequest:
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    return BadRequest(f"can't Unmarshal body: Unrecognized request format: {reason}")


def join(answers: Sequence[bytes], batch_id: str | None, key: bytes = b"predictions") -> bytes:
    """The body of a response; with a batch id in the form of KServe's batcher, whose key order is fixed.

    ``key`` is the key of the answers (kserve reference 4).
    """
    batch = b"" if batch_id is None else b'"message":"","batchId":"%b",' % batch_id.encode()
    # Copy a large answer only once: allocating memory for it takes milliseconds.
    return b"".join((b"{", batch, b'"', key, b'":[', b",".join(answers), b"]}"))
