"""The models that a server loads at startup, and the outcome."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from modelserver.engine.pools.output import without_quote
from modelserver.engine.telemetry.text import shortened
from modelserver.errors import ModelServerError
from modelserver.models.archives.store import ModelStore
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings
from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")

LONGEST = 2000  # characters of a reason


async def load_first(
    registry: Registry,
    listing: Callable[[], Awaitable[Sequence[Registration]]],
    *,
    on_progress: Callable[[str], None],
    on_notice: Callable[[str], None],
) -> bool:
    """Registers the models that ``listing`` returns (reference 2.3); True if all succeeded.

    Steps are reported to ``on_progress``, what failed is to ``on_notice``.
    """

    def fail(text: str) -> None:
        on_notice(text)
        _log.error("%s", text)

    try:
        registrations = await listing()
    except ModelServerError as error:
        fail(f"The model store cannot be listed: {error.message}")
        return False
    succeeded = True
    archives = registry.builder.opening(registrations, on_progress)
    for registration, opening in zip(registrations, archives, strict=True):
        _log.info("Loading initial models: %s", registration.url)
        on_progress(f"Loading {registration.url}")
        name = default_name(registration.url or "")
        try:
            await registry.register(
                registration, at_startup=True, fallback_name=name, on_progress=on_progress, opening=opening
            )
        except ModelServerError as error:
            succeeded = False
            fail(f"Failed to load model: {registration.url}: {error.message}")
    return succeeded


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
