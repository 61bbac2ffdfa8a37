"""From a registration to a model version that can be served: archive, configuration, options, pool."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import sys
from typing import TYPE_CHECKING

from modelserver import __version__
from modelserver.errors import BadRequest, InternalError, InvalidModel
from modelserver.models.archive import ModelArchive, open_archive
from modelserver.models.config import ModelConfig, parse_model_config
from modelserver.models.options import ModelOptions, Registration, resolve_options
from modelserver.models.sources import locate
from modelserver.models.urls import UrlPolicy
from modelserver.models.version import ModelVersion
from modelserver.settings.cpus import usable_cpus
from modelserver.wire.messages import Load
from modelserver.workers.devices import DeviceList, DeviceRing
from modelserver.workers.gate import StartGate, need_of
from modelserver.workers.pool import Pool, PoolLimits
from modelserver.workers.process import WorkerSpec
from modelserver.workers.worker import WorkerTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from modelserver.settings.settings import Settings
    from modelserver.telemetry.metrics import ServerMetrics
    from modelserver.workers.spawner import Spawner

_log = logging.getLogger("modelserver.models")

_STORE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")
# A frame cannot hold more rows.
MAX_BATCH_SIZE = 1 << 20

# What a frame's head may need per answer, beside the answer itself.
_HEAD_ROOM = 65536


class Preparation:
    """Everything that stays the same from one registration to the next.

    Args:
        settings: of the server.
        sources: where each setting came from.
        workdir: an own directory for what is unpacked.
        metrics: of the server.
        devices: the GPUs.
        spawner: forks workers; without it each is a new Python.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Mapping[str, str],
        workdir: Path,
        metrics: ServerMetrics,
        devices: DeviceRing,
        *,
        spawner: Spawner | None = None,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._workdir = workdir
        self._metrics = metrics
        self._devices = devices
        self._cpus = usable_cpus()
        self._policy = UrlPolicy(settings.allowed_urls, settings.allowed_urls_given)
        self._spawner = spawner
        self._gate = StartGate()
        self._next_id: Callable[[], int] = itertools.count(settings.initial_worker_port).__next__

    async def open(self, url: str, on_progress: Callable[[str], None] | None = None) -> ModelArchive:
        """Finds, fetches and unpacks what the URL names; the progress of a download is told and logged."""
        steps = Steps(url, on_progress)
        located = await locate(url, self._settings.model_store, self._policy, self._workdir, steps)
        return await asyncio.to_thread(
            open_archive,
            located.path,
            url,
            self._workdir,
            downloaded=located.downloaded,
            temporary=located.temporary,
        )

    def build(
        self, name: str, registration: Registration, archive: ModelArchive, *, at_startup: bool
    ) -> ModelVersion:
        """Composes the version; nothing is started yet.

        Raises:
            BadRequest: a batch size beyond all measure.
            InvalidModel: no handler anywhere, a runtime that is not Python, a configuration that cannot be
            read.
        """
        manifest = archive.manifest
        version = manifest.model_version
        runtime = registration.runtime or manifest.runtime
        if runtime == "LSP":
            raise InvalidModel("The runtime LSP (TorchServe's C++ backend) is not available here.")
        handler = registration.handler or manifest.handler or self._settings.default_service_handler
        if not handler:
            raise InvalidModel(
                f"The archive {archive.url} names no handler, and neither does the registration."
            )
        archive.check_handler(handler)
        config = self._config(archive)
        options = resolve_options(
            name,
            version,
            registration,
            config,
            self._settings,
            at_startup=at_startup,
            device_count=self._devices.count,
            cpu_count=self._cpus,
            setting_sources=self._sources,
        )
        for warning in options.warnings:
            _log.warning("%s %s: %s", name, version, warning)
        if options.batch_size > MAX_BATCH_SIZE:
            raise BadRequest(f"batch_size={options.batch_size}: at most {MAX_BATCH_SIZE} is possible")
        if options.parallel_level > max(1, self._devices.count):
            raise InternalError(
                f"No enough gpu devices for model:{name} parallelLevel:{options.parallel_level}"
            )
        metrics = self._metrics.model(name, version)
        pool = Pool(
            name,
            f"{name}_{version}",
            self._spec(name, version, handler, archive, options),
            self._times(options),
            _limits(options),
            next_id=self._next_id,
            devices=self._devices_for(options),
            metrics=metrics,
        )
        return ModelVersion(name, version, archive.url, archive, options, runtime, pool, metrics, at_startup)

    def _config(self, archive: ModelArchive) -> ModelConfig | None:
        if archive.config_text is None:
            return None
        config, warnings = parse_model_config(archive.config_text)
        for warning in warnings:
            _log.warning("%s: %s", archive.url, warning)
        return config

    def _spec(
        self, name: str, version: str, handler: str, archive: ModelArchive, options: ModelOptions
    ) -> WorkerSpec:
        settings = self._settings
        load = Load(
            model_name=name,
            model_version=version,
            model_dir=str(archive.model_dir),
            handler=handler,
            batch_size=options.batch_size,
            envelope=settings.service_envelope or "",
            config_file=archive.manifest.config_file or "",
            decode_input_request=settings.decode_input_request,
            limit_max_image_pixels=settings.limit_max_image_pixels,
            max_response_size=settings.max_response_size,
            server_version=__version__,
            isolate=settings.isolate_failures,
        )
        return WorkerSpec(
            load=load,
            threads=self._cpus,
            frame_limit=options.batch_size * (settings.max_response_size + _HEAD_ROOM) + _HEAD_ROOM,
            hidden_variables=settings.blacklist_env_vars,
            python=settings.python or sys.executable,
            spawner=self._spawner,
            gate=self._gate,
            need=need_of(archive.model_dir),
        )

    def _times(self, options: ModelOptions) -> WorkerTimes:
        return WorkerTimes(
            startup=options.startup_timeout,
            response=options.response_timeout,
            silence=self._settings.silence_timeout,
            max_retry=options.max_retry_timeout,
        )

    def _devices_for(self, options: ModelOptions) -> DeviceRing | DeviceList:
        if options.device_type == "cpu":
            return DeviceList(())
        return DeviceList(options.device_ids) if options.device_ids else self._devices

    async def dismantle(self, model: ModelVersion) -> None:
        """Ends a version's workers and removes its files."""
        await model.pool.close(self._settings.unregister_model_timeout)
        self._metrics.forget(model.name, model.version)
        await asyncio.to_thread(model.archive.remove)

    def initial(self) -> list[Registration]:
        """What is to be loaded at start."""
        store = self._settings.model_store
        if self._settings.load_all and store is not None:
            return [Registration(url=name) for name in sorted(_loadable(store))]
        return [Registration(url=item.url, model_name=item.name) for item in self._settings.load_models]

    @staticmethod
    def default_name(url: str) -> str:
        """A name for an archive whose manifest has none (reference 2.3)."""
        name = re.split(r"[/\\]", url.rstrip("/"))[-1]
        if ".mar" in name or ".model" in name:
            name = name.rpartition(".")[0]
        return re.sub(r"\W", "_", name).removeprefix("_")


class Steps:
    """Tells how far a download is, at every tenth of it, or at every 64 MiB where its size is not known."""

    def __init__(self, url: str, tell: Callable[[str], None] | None) -> None:
        self._name = url.rpartition("/")[2].partition("?")[0]
        self._tell = tell
        self._told = 0

    def __call__(self, received: int, total: int | None) -> None:
        step = received * 10 // total if total else received >> 26
        if step == self._told:
            return
        self._told = step
        text = f"Downloading {self._name}: " + (f"{step * 10} %" if total else f"{received >> 20} MiB")
        _log.info("%s", text)
        if self._tell is not None:
            self._tell(text)


def _limits(options: ModelOptions) -> PoolLimits:
    return PoolLimits(
        batch_size=options.batch_size,
        policy=options.batch_policy.value,
        max_delay=max(0, options.max_batch_delay) / 1000.0,
        max_requests=options.job_queue_size,
        max_bytes=options.job_queue_bytes,
    )


def _loadable(store: Path) -> list[str]:
    return [
        entry.name
        for entry in store.iterdir()
        if not entry.name.startswith(".") and (entry.is_dir() or entry.name.endswith(_STORE_SUFFIXES))
    ]
