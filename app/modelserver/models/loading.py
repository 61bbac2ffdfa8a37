"""The models that a server loads at startup, from a snapshot and the settings, and the outcome."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from modelserver.engine.pools.output import without_quote
from modelserver.engine.telemetry.text import shortened
from modelserver.errors import BadRequest, ModelServerError
from modelserver.models.archives.archive import ModelArchive
from modelserver.models.archives.store import ModelStore
from modelserver.models.options.resolve import REGISTER, SNAPSHOT, Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.load import LoadedSettings
from modelserver.models.settings.settings import Settings
from modelserver.models.snapshot_files import SnapshotFolder, had_all
from modelserver.models.version import ModelVersion, SavedModel, mar_name

_log = logging.getLogger("modelserver.models")

LONGEST = 2000  # characters of a reason
_LONGEST_NOTICE = 4000


async def load_first(
    registry: Registry,
    loaded: LoadedSettings,
    configured: Sequence[SavedModel],
    snapshots: SnapshotFolder | None,
    *,
    registrations: Sequence[Registration] | None = None,
    on_progress: Callable[[str], None],
    on_notice: Callable[[str], None],
) -> bool:
    """Loads the latest snapshot and the models in the settings (design, section 9); True if all succeeded.

    ``configured`` is the state in ``model_snapshot``; ``registrations`` replace the models in the settings.
    Steps are reported to ``on_progress``, outcomes to ``on_notice``. The workflows of a snapshot are only
    noted.
    """
    settings, saved, origin = loaded.settings, configured, loaded.sources["model_snapshot"]
    decides = settings.load_all and settings.model_snapshot is not None
    if (
        settings.model_snapshot is None
        and snapshots is not None
        and not settings.as_torchserve
        and (newest := await asyncio.to_thread(snapshots.newest, registry.router.check))
    ):
        path, (saved, workflows) = newest
        origin = str(path)
        decides = settings.load_all and await asyncio.to_thread(had_all, path)
        registry.workflows.update(workflows)
    alone = settings.as_torchserve and settings.model_snapshot is not None
    if saved:
        also = "" if alone or decides else ",".join(map(str, settings.load_models))
        text = "Restoring %d model versions from %s; also loading, unless restored: %s"
        _log.info(text, len(saved), origin, also or "nothing")
        await restore(registry, saved, on_progress)
        _report(f"Restored from {origin}: {_listed(registry.versions())}", on_notice)
    if registrations is None:
        try:
            registrations = [] if alone else await initial(settings, registry.builder.store)
        except ModelServerError as error:
            on_notice(f"The model store cannot be listed: {error.message}")
            _log.error("The model store cannot be listed: %s", error.message)
            return False
        if decides:
            registrations = _none_of_all(registrations, saved, on_notice)
    left_out = await load_initial(registry, registrations, on_progress, restored=bool(saved))
    for line in left_out:
        on_notice(shortened(line, _LONGEST_NOTICE))
    return not left_out


def _none_of_all(
    registrations: Iterable[Registration], saved: Iterable[SavedModel], on_notice: Callable[[str], None]
) -> list[Registration]:
    """What ``load_models=all`` adds to a state that was saved with it: nothing, so that models that were
    unregistered stay away. Reports the archives that the state does not have.
    """
    known = {(item.registration.url or "").rstrip("/").rpartition("/")[2] for item in saved}
    names = [item.url for item in registrations if item.url is not None and item.url not in known]
    if names:
        _report(
            f"Not loaded, as the restored state does not have them: {shortened(', '.join(names), LONGEST)}. "
            f"To load them, register them (POST /models?url={names[0]}), name them (--models {names[0]}), "
            "or start with --ncs, which loads all.",
            on_notice,
        )
    return []


def _report(text: str, on_notice: Callable[[str], None]) -> None:
    line = shortened(text, _LONGEST_NOTICE)
    _log.info("%s", line)
    on_notice(line)


async def restore(
    registry: Registry, saved: Sequence[SavedModel], on_progress: Callable[[str], None]
) -> None:
    """Registers the versions of a snapshot; failures are listed with their reason (F55).

    If the archive now has a different version, that one is registered instead, with a warning. A failed
    version is only the default if there is no other.
    """
    archives = _opening(registry, (item.registration for item in saved), on_progress)
    for item, opening in zip(saved, archives, strict=True):
        on_progress(f"Restoring {item.name} {item.version}")
        try:
            model = await _restore_one(registry, item, on_progress, opening)
        except ModelServerError as error:
            _log.error("%s %s cannot be restored: %s", item.name, item.version, error.message)
            if (item.name, item.version) not in registry:
                registry.add(registry.builder.failed(item, error.message))
            continue
        if item.default:
            await registry.set_default(item.name, model.version)
    await _restore_traffic(registry, saved)


async def _restore_traffic(registry: Registry, saved: Sequence[SavedModel]) -> None:
    """What the snapshot says of the traffic holds, not what the files of the models say."""
    plans = {item.name: item.traffic for item in saved if item.traffic is not None}
    for name in dict.fromkeys(item.name for item in saved):
        if name not in registry.names():
            continue
        try:
            registry.router.direct(name, plans.get(name))
        except BadRequest as error:
            _log.warning("The traffic of %s is not restored: %s", name, error.message)


async def _restore_one(
    registry: Registry, item: SavedModel, on_progress: Callable[[str], None], opening: Awaitable[ModelArchive]
) -> ModelVersion:
    saved = item.registration
    model = await registry.register(saved, at_startup=True, on_progress=on_progress, opening=opening)
    sources = {
        option: SNAPSHOT if source == REGISTER else source for option, source in model.options.sources.items()
    }
    model.options = replace(model.options, sources=sources)
    if model.version != item.version:
        text = "%s %s could not be restored as %s now has version %s, which was registered instead"
        _log.warning(text, item.name, item.version, saved.url, model.version)
    return model


async def load_initial(
    registry: Registry,
    registrations: Sequence[Registration],
    on_progress: Callable[[str], None],
    *,
    restored: bool,
) -> list[str]:
    """Registers models at startup (reference 2.3); returns a line for each that failed.

    ``restored``: a snapshot was restored before; its models are not loaded again.
    """
    left_out = []
    if restored:
        registrations = [each for each in registrations if not _is_restored(registry, each)]
    archives = _opening(registry, registrations, on_progress)
    for registration, opening in zip(registrations, archives, strict=True):
        _log.info("Loading initial models: %s", registration.url)
        on_progress(f"Loading {registration.url}")
        name = default_name(registration.url or "")
        try:
            await registry.register(
                registration, at_startup=True, fallback_name=name, on_progress=on_progress, opening=opening
            )
        except ModelServerError as error:
            left_out.append(f"Failed to load model: {registration.url}: {error.message}")
            _log.error("%s", left_out[-1])
    return left_out


async def initial(settings: Settings, store: ModelStore) -> list[Registration]:
    """The registrations that the settings ask for. Raises OSError, ModelServerError."""
    if settings.load_all and settings.model_store is not None:
        return [Registration(url=name) for name in sorted(await store.loadable())]
    return [Registration(url=item.url, model_name=item.name, trusted=True) for item in settings.load_models]


def default_name(url: str) -> str:
    """A name for an archive whose manifest has none (reference 2.3)."""
    name = re.split(r"[/\\]", url.rstrip("/"))[-1]
    if ".mar" in name or ".model" in name:
        name = name.rpartition(".")[0]
    return re.sub(r"\W", "_", name).removeprefix("_")


def _is_restored(registry: Registry, registration: Registration) -> bool:
    """Whether a version of this archive and name is already registered."""
    file = (registration.url or "").rstrip("/").rpartition("/")[2]
    is_restored = any(
        mar_name(model) == file and registration.model_name in (None, model.name)
        for model in registry.versions()
        if not model.failure
    )
    if is_restored:
        _log.info("%s was already restored", registration.url)
    return is_restored


def _opening(
    registry: Registry, registrations: Iterable[Registration], on_progress: Callable[[str], None]
) -> Iterator[Awaitable[ModelArchive]]:
    """The tasks that open the archives; one is opened while the model before it is registered."""
    tasks = (asyncio.create_task(registry.builder.open(each, on_progress)) for each in registrations)
    coming = next(tasks, None)
    while coming is not None:
        opening, coming = coming, next(tasks, None)
        yield opening


def _listed(models: Iterable[ModelVersion]) -> str:
    """Names and versions as text, with the reasons of failures."""
    return "; ".join(
        f"{model.name} {model.version}"
        + (f" FAILED ({shortened(model.failure, 200)})" if model.failure else "")
        for model in models
    )


async def tell_first_loads(
    models: Iterable[ModelVersion], tell: Callable[[str], None], started: float
) -> bool:
    """Reports each model that has workers, once these have loaded or failed; returns whether all have loaded.

    ``started``: seconds of the monotonic clock from which times are counted.
    """
    # Of a thousand models on demand there is nothing to say.
    expected = [each for each in models if each.pool.workers or each.pool.min_workers]
    return all(await asyncio.gather(*(_tell_one(model, tell, started) for model in expected)))


async def _tell_one(model: ModelVersion, tell: Callable[[str], None], started: float) -> bool:
    workers = list(model.pool.workers)
    if workers:
        await asyncio.wait([worker.first_load for worker in workers])
    # A worker that failed may have been restarted since.
    ready = model.pool.statistics().ready
    fewest = model.pool.min_workers
    text = f"{model.name}: {ready}/{fewest} workers ready ({time.monotonic() - started:.1f} s)"
    if ready >= fewest:
        _log.info("%s", text)
    else:
        reason = model.pool.failure or "unknown reason"
        # The output has been logged when the worker ended.
        _log.error("%s: %s", text, shortened(without_quote(reason), LONGEST))
        text = f"{text}: {shortened(reason, LONGEST)}"
    tell(text)
    return ready >= fewest
