"""Replaces a version by one that is loaded beside it: our own addition to scaling.

Options set by a registration or a later change (handler, batching, timeouts, numbers of workers) are kept
unless the replacement sets them. Values from the old archive's ``model-config.yaml`` are replaced by the new
one's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from typing import Any

from modelserver.engine.resources import available_memory
from modelserver.engine.telemetry.system import family_of, worker_memory
from modelserver.engine.telemetry.text import without_credentials
from modelserver.errors import BadRequest, ModelServerError, OutOfMemory
from modelserver.models.archives.incoming import is_beside
from modelserver.models.options.resolve import REQUESTABLE, Registration
from modelserver.models.registry import Registry, check_workers
from modelserver.models.version import ModelVersion, Replacement

_log = logging.getLogger("modelserver.models")

# Registration parameters with KServe's name for the same option.
_SYNONYMS = [(option.name, option.kserve) for option in REQUESTABLE.values() if option.kserve]
_OF_ONE = "url trusted workflow trace synchronous s3_sse_kms initial_workers min_workers max_workers"
_OF_ONE_REQUEST = frozenset(_OF_ONE.split())
_MIB = 1 << 20


async def replace_archive(
    registry: Registry, name: str, version: str | None, registration: Registration
) -> asyncio.Task[ModelVersion]:
    """Starts replacing a version by another archive, keeping its settings unless ``registration`` has others.

    Returns once the archive is known to be valid; the task ends when the new version serves or has failed.

    Raises:
        ModelServerError: as for a registration.
        Conflict: it is already being replaced.
        BadRequest: its requests belong to sequences.
        OutOfMemory: there is no memory for both.
    """
    before = registry.changeable(name, version)
    check_replaceable(before)
    return await _begin(registry, before, taken_over(before, registration), guarded=True)


async def load_anew(registry: Registry, before: ModelVersion, registration: Registration) -> ModelVersion:
    """Reloads a model, which replaces the version ``before`` once its workers have loaded.

    Until then, and if loading fails, ``before`` keeps serving (F52); it also answers requests already
    waiting. Raises ModelServerError as for a registration, Conflict if it is already being replaced.
    """
    registry.changeable(before.name, before.version)
    return await asyncio.shield(await _begin(registry, before, registration))


async def _begin(
    registry: Registry, before: ModelVersion, registration: Registration, *, guarded: bool = False
) -> asyncio.Task[ModelVersion]:
    if before.registration.trusted and registration.url == before.registration.url:
        registration = replace(registration, trusted=True)
    registration = replace(registration, workflow=before.registration.workflow)
    replacement = before.replacement = Replacement(without_credentials(registration.url or ""))
    try:
        model = await _build_beside(registry, before, registration, guarded=guarded)
    except BaseException as error:
        _stays(before, replacement, error)
        raise
    replacement.version = model.version
    _log.info("Model %s %s: loading its replacement %s", before.name, before.version, replacement.url)
    task = asyncio.create_task(_load_and_exchange(registry, before, model, replacement))
    registry.replacing.add(task)
    task.add_done_callback(registry.replacing.discard)
    # Retrieved, as it is already logged.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _stays(before: ModelVersion, replacement: Replacement, error: BaseException) -> None:
    reason = error.message if isinstance(error, ModelServerError) else str(error) or "cancelled"
    replacement.failed(reason)
    text = "Model %s %s could not be replaced by %s and keeps serving: %s"
    _log.error(text, before.name, before.version, replacement.url, reason)


async def _build_beside(
    registry: Registry, before: ModelVersion, registration: Registration, *, guarded: bool
) -> ModelVersion:
    """The new version, without workers; its name and version are reserved."""
    archive = await registry.builder.open(registration, beside=before.archive.downloaded)
    name, version = before.name, archive.manifest.model_version
    async with AsyncExitStack() as undo:
        undo.push_async_callback(asyncio.to_thread, archive.remove)
        if version != before.version:
            registry.reserve(name, version)
            undo.callback(registry.release, name, version)
        model = await registry.builder.build(name, registration, archive, at_startup=False)
        undo.pop_all()
    try:
        check_workers(model.options.min_workers)
        if guarded:
            await asyncio.to_thread(check_room, before, model)
    except BaseException:
        await _abandon(registry, model)
        raise
    return model


async def _load_and_exchange(
    registry: Registry, before: ModelVersion, model: ModelVersion, replacement: Replacement
) -> ModelVersion:
    try:
        pool, count = model.pool, worker_count(before, model)
        if count and pool.crew.on_demand is not None:
            # The first worker waits for memory, as a request does.
            pool.scale(0, model.options.max_workers)
            await pool.crew.on_demand.load()
        pool.scale(model.options.min_workers, model.options.max_workers)
        if count > len(pool.workers):
            pool.crew.resize(count)
        await registry.wait_scaled(model, model.pool.workers, model.version)
        async with registry.lock(model.name):
            registry.exchange(before, model)
    except BaseException as error:
        await _abandon(registry, model)
        _stays(before, replacement, error)
        raise
    registry.release(model.name, model.version)
    before.replacement = None
    _log.info("Model %s %s was replaced by version %s", model.name, before.version, model.version)
    retiring = asyncio.create_task(_retire(registry, before, model))
    registry.retiring.add(retiring)
    retiring.add_done_callback(registry.retiring.discard)
    try:
        await _settle(before, model)
    except OSError as error:
        _log.error("Cannot clean up the model store: %s", error)
    await registry.changed()
    return model


async def _abandon(registry: Registry, model: ModelVersion) -> None:
    """Removes a replacement that failed."""
    registry.release(model.name, model.version)
    await model.pool.close(0)
    await asyncio.to_thread(model.archive.remove)
    registry.forget(model)


async def _retire(registry: Registry, before: ModelVersion, successor: ModelVersion) -> None:
    """Ends a replaced version after its requests; those still waiting after the grace go to the successor."""
    async with AsyncExitStack() as last:
        last.callback(registry.forget, before)
        last.push_async_callback(asyncio.to_thread, before.archive.close)
        await before.pool.retire(successor.pool, registry.builder.grace)


async def _settle(before: ModelVersion, after: ModelVersion) -> None:
    """Keeps only the successor's file in the model store, if either was downloaded."""
    old, new = before.archive.downloaded, after.archive.downloaded
    if old is None:
        return
    if new is not None and is_beside(new):
        await asyncio.to_thread(new.replace, old)
        after.archive = replace(after.archive, downloaded=old)
    elif after.mar_name != old.name:
        await asyncio.to_thread(old.unlink, missing_ok=True)


def check_replaceable(model: ModelVersion) -> None:
    """Raises BadRequest for a version whose workers hold the state of sequences."""
    if model.options.sequence_batching:
        raise BadRequest(
            f"Model {model.name} {model.version} cannot be replaced while it runs: its sequences live in "
            "its workers. Register the archive as another version and make that the default, or unregister "
            "this one."
        )


def taken_over(before: ModelVersion, registration: Registration) -> Registration:
    """The new archive's registration: what ``registration`` has, else what ``before`` was registered with.

    Raises BadRequest for conflicting values.
    """
    values = {
        field.name: _value(field.name, before, registration)
        for field in fields(Registration)
        if field.name not in _OF_ONE_REQUEST
    }
    for name, other in _SYNONYMS:
        value = _first(registration.value_of(name), registration.value_of(other), _requested(before, name))
        in_block = before.registration.has_batcher or registration.has_batcher
        values[name], values[other] = (None, value) if in_block else (value, None)
    fewest, most = _workers(before, registration)
    return Registration(
        **{**values, "model_name": before.name},
        url=registration.url,
        trace=registration.trace,
        min_workers=fewest,
        max_workers=most,
        synchronous=registration.synchronous,
        s3_sse_kms=registration.s3_sse_kms,
    )


def worker_count(before: ModelVersion, after: ModelVersion) -> int:
    """The number of workers to start: as many as there are now, within the new bounds."""
    return max(after.options.min_workers, min(len(before.pool.workers), after.options.max_workers))


def check_room(before: ModelVersion, after: ModelVersion) -> None:
    """Raises OutOfMemory, with both figures, if the workers of both versions do not fit into memory.

    A new worker counts as much as the largest running one plus the difference in archive size; if none runs,
    as the start gate counts it. Of a worker all processes count, and what their descendants share with none:
    forked ones share the rest. Other machines have memory of their own. Reads /proc; for another thread.
    """
    if after.pool.crew.spec.launcher is not None:
        return
    running = [each.process for each in before.pool.workers]
    used = max((_memory_of(process.pids) for process in running if process is not None), default=0)
    available = available_memory()
    workers, need = worker_count(before, after), after.pool.crew.spec.need
    needed = workers * (used + max(0, need - before.pool.crew.spec.need) if used else need)
    if needed > available:
        raise OutOfMemory(
            f"Model {before.name} {before.version} is not replaced: {workers} additional workers need about "
            f"{needed // _MIB} MiB, but {int(available) // _MIB} MiB are available. "
            "Scale it down first, or request fewer with min_worker."
        )


def _memory_of(pids: Sequence[int]) -> int:
    return sum(worker_memory(pid, alone=pid not in pids) for pid in family_of(pids))


def _value(name: str, before: ModelVersion, registration: Registration) -> Any:
    return _first(registration.value_of(name), _requested(before, name), getattr(before.registration, name))


def _first(*values: Any) -> Any:
    """The first that is set."""
    return next((value for value in values if value is not None), None)


def _requested(before: ModelVersion, name: str) -> Any:
    """The current value of the option, if it was set by a registration or change."""
    return getattr(before.options, name) if before.options.by_request(name) else None


def _workers(before: ModelVersion, registration: Registration) -> tuple[int, int]:
    """The fewest and most workers: as given, the most defaulting to the fewest; else the current bounds."""
    fewest = _first(registration.min_workers, registration.initial_workers)
    if fewest is not None:
        return fewest, _first(registration.max_workers, fewest)
    if registration.max_workers is not None:
        return min(before.pool.min_workers, registration.max_workers), registration.max_workers
    return before.pool.min_workers, max(before.pool.min_workers, before.pool.max_workers)
