"""KServe's V1 bodies: taken apart into instances without being decoded, and put together again.

What they look like is in the kserve reference, 1 and 4. Instances keep the bytes the client wrote: numbers
of any size stay what they are, nothing is reordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from modelserver.errors import BadRequest
from modelserver.tensors.limits import RequestLimits  # noqa: TC001 - helpers read annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence


class _InstancesOnly(msgspec.Struct, forbid_unknown_fields=True):
    """The usual body. Anything more takes the longer way."""

    instances: list[msgspec.Raw]


_decode_usual = msgspec.json.Decoder(_InstancesOnly).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class V1Body:
    """A body taken apart: the instances as JSON; the other top-level fields as a JSON object, or nothing."""

    instances: list[bytes]
    extra: bytes


def split(body: bytes) -> V1Body:
    """Takes a body apart. ``inputs`` is read like ``instances`` where that is absent.

    Raises:
        BadRequest: no JSON object, or no list of instances, or an empty one. The messages begin with the
        phrases
            that clients of KServe know.
    """
    try:
        usual = _decode_usual(body)
    except msgspec.ValidationError:
        return _split_fields(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    return V1Body(_check(usual.instances), b"")


def split_aside(body: bytes, limits: RequestLimits) -> V1Body:
    """What a helper does of it. Raises BadRequest; PayloadTooLarge for more instances than there may be."""
    apart = split(body)
    limits.check_instances(len(apart.instances), len(apart.extra))
    return apart


def _split_fields(body: bytes) -> V1Body:
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
    return V1Body(_check(instances), extra)


def _check(instances: list[msgspec.Raw]) -> list[bytes]:
    if not instances:
        raise BadRequest("no instances in the request: the list is empty")
    return [bytes(instance) for instance in instances]


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
