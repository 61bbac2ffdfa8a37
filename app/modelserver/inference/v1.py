"""KServe's V1 bodies: taken apart into instances without being decoded, and put together again.

What they look like is in the kserve reference, 1 and 4. Instances keep the bytes the client wrote: numbers
of any size stay what they are, nothing is reordered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from modelserver.errors import BadRequest
from modelserver.http.answers import JSON
from modelserver.inference.codec import SECONDS, Asked, Codec, contents_of
from modelserver.tensors import weight
from modelserver.tensors.limits import RequestLimits  # noqa: TC001 - helpers read annotations at run time
from modelserver.wire.messages import INSTANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.batching.request import Request
    from modelserver.http.exchange import Exchange
    from modelserver.models.version import ModelVersion


class _InstancesOnly(msgspec.Struct, forbid_unknown_fields=True):
    """The usual body. Anything more takes the longer way."""

    instances: list[msgspec.Raw]


_decode_usual = msgspec.json.Decoder(_InstancesOnly).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Instances(Asked):
    """A body taken apart: the instances as JSON; the other top-level fields as a JSON object, or nothing."""

    joins: ClassVar[bool] = True
    where: ClassVar[str] = "instances[%d]: "

    @classmethod
    def of(cls, instances: list[msgspec.Raw], extra: bytes = b"") -> Instances:
        """Raises BadRequest if there are none."""
        if not instances:
            raise BadRequest("no instances in the request: the list is empty")
        return cls([bytes(instance) for instance in instances], INSTANCE, JSON, extra=extra, key=extra)

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        key = b"explanations" if request.rows[0].explain else b"predictions"
        batch_id = request.batch_id if model.batches else None
        return join(contents_of(request), batch_id, key), JSON, b""


class V1(Codec):
    """KServe's V1; a model may take its bodies as they are (design section 9, "Rows")."""

    tells_batch: ClassVar[bool] = True

    def read(self, exchange: Exchange, model: ModelVersion) -> Asked:
        if model.splits == "never":
            return super().read(exchange, model)
        if weight.is_heavy_json(exchange.body):
            raise weight.TooHeavy
        return split(exchange.body)

    async def read_aside(self, exchange: Exchange, model: ModelVersion) -> Asked:
        if model.splits == "never":
            return await super().read_aside(exchange, model)
        return await self._helpers.call(SECONDS, split_aside, exchange.body, self._limits)


def split(body: bytes) -> Instances:
    """Takes a body apart. ``inputs`` is read like ``instances`` where that is absent.

    Raises:
        BadRequest: no JSON object, or no list of instances, or an empty one. The messages begin with the
            phrases that clients of KServe know.
    """
    try:
        usual = _decode_usual(body)
    except msgspec.ValidationError:
        return _split_fields(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    return Instances.of(usual.instances)


def split_aside(body: bytes, limits: RequestLimits) -> Instances:
    """What a helper does of it. Raises BadRequest; PayloadTooLarge for more instances than there may be."""
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
    """A success body; with a batch id in the KServe batcher's form, whose key order is fixed.

    ``key`` is what the answers stand under: ``explanations`` for those (kserve reference 4).
    """
    told = b"" if batch_id is None else b'"message":"","batchId":"%b",' % batch_id.encode()
    # A large answer is copied once: new memory for it takes milliseconds.
    return b"".join((b"{", told, b'"', key, b'":[', b",".join(answers), b"]}"))
