"""What another archive takes over from the version whose place it takes: our own addition to scaling.

What a registration or a later change asked for stays, as long as the replacement does not say otherwise:
handler, batch settings, timeouts, numbers of workers. What came from the old archive's ``model-config.yaml``
comes from the new one's.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from modelserver.errors import BadRequest, OutOfMemory
from modelserver.options.resolve import ASKED, REGISTER, SNAPSHOT, Registration

if TYPE_CHECKING:
    from modelserver.models.version import ModelVersion


_ASKED_FOR = (REGISTER, SNAPSHOT)
# Of each the words of a registration, and KServe's.
_SYNONYMS = [(option.name, option.kserve) for option in ASKED.values() if option.kserve]
_OF_ONE_REQUEST = (
    *("url", "trusted", "synchronous", "s3_sse_kms"),
    *("initial_workers", "min_workers", "max_workers"),
)
_MIB = 1 << 20


def check_replaceable(model: ModelVersion) -> None:
    """Raises BadRequest for a version whose workers hold what no other worker could go on with."""
    if model.options.sequence_batching:
        raise BadRequest(
            f"Model {model.name} {model.version} cannot be replaced while it runs: its sequences live in "
            "its workers. Register the archive as another version and make that the default, or unregister "
            "this one."
        )


def taken_over(before: ModelVersion, given: Registration) -> Registration:
    """The registration of the new archive: what is ``given``, and of the rest what was asked for ``before``.

    Raises BadRequest for values that exclude each other.
    """
    values = {
        field.name: _value(field.name, before, given)
        for field in fields(Registration)
        if field.name not in _OF_ONE_REQUEST
    }
    for name, other in _SYNONYMS:
        value = given.given(name) if given.given(name) is not None else given.given(other)
        if value is None:
            value = _asked_for(before, name)
        in_block = before.registration.has_batcher or given.has_batcher
        values[name], values[other] = (None, value) if in_block else (value, None)
    fewest, most = _workers(before, given)
    return Registration(
        **{**values, "model_name": before.name},
        url=given.url,
        min_workers=fewest,
        max_workers=most,
        synchronous=given.synchronous,
        s3_sse_kms=given.s3_sse_kms,
    )


def worker_count(before: ModelVersion, after: ModelVersion) -> int:
    """With how many workers the new version begins: where bounds leave a choice, as many as there are now."""
    return max(after.options.min_workers, min(len(before.pool.workers), after.options.max_workers))


def check_memory(before: ModelVersion, after: ModelVersion, used: int, available: float) -> None:
    """Whether the workers of both fit into memory side by side.

    A new worker counts as much as one that runs, and what its archive is larger by; where none runs, what the
    gate of starting workers counts.

    Args:
        used: bytes of the largest worker that runs, 0 if none does.
        available: bytes that can still be had.

    Raises:
        OutOfMemory: they would not; the message gives both figures.
    """
    workers, need = worker_count(before, after), after.pool.need
    wanted = workers * (used + max(0, need - before.pool.need) if used else need)
    if wanted > available:
        raise OutOfMemory(
            f"Model {before.name} {before.version} is not replaced: {workers} workers beside those that run "
            f"need about {wanted // _MIB} MiB, and {int(available) // _MIB} MiB are available. "
            "Scale it down first, or name fewer with min_worker."
        )


def _value(name: str, before: ModelVersion, given: Registration) -> Any:
    value = given.given(name)
    if value is None:
        value = _asked_for(before, name)
    return getattr(before.registration, name) if value is None else value


def _asked_for(before: ModelVersion, name: str) -> Any:
    """The option as it is now, where an operator chose it."""
    if before.options.sources.get(name) not in _ASKED_FOR:
        return None
    value = getattr(before.options, name)
    return value.value if isinstance(value, Enum) else value


def _workers(before: ModelVersion, given: Registration) -> tuple[int, int]:
    """As many as there should be now, unless they are named; the most are the fewest then, as in scaling."""
    fewest = given.min_workers if given.min_workers is not None else given.initial_workers
    if fewest is not None:
        return fewest, fewest if given.max_workers is None else given.max_workers
    if given.max_workers is not None:
        return min(before.pool.min_workers, given.max_workers), given.max_workers
    return before.pool.min_workers, max(before.pool.min_workers, before.pool.max_workers)
