"""Turns a registration into a model version that can be served: archive, configuration, options, pool."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from modelserver.engine.demand import Demand
from modelserver.engine.pools.devices import DeviceList, DeviceRing, groups_of, look_again
from modelserver.engine.pools.gate import StartGate
from modelserver.engine.pools.pool import FailedPool, Pool
from modelserver.engine.pools.spec import (
    Affinity,
    Forker,
    Launcher,
    Machines,
    PoolLimits,
    Ports,
    Ranks,
    WorkerSpec,
    WorkerTimes,
)
from modelserver.engine.resources import usable_cpus
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.model_metrics import ModelMetrics
from modelserver.engine.wire.messages import (
    ASYNC,
    CONTINUOUS,
    METRICS_CONFIG,
    Load,
    OutputSpec,
    SequenceHeaders,
)
from modelserver.errors import BadRequest, InternalError, InvalidModel
from modelserver.models.archives.archive import ModelArchive
from modelserver.models.archives.incoming import Transfer
from modelserver.models.archives.manifest import MANIFEST_PATH, Manifest
from modelserver.models.archives.sources import locate, with_manifest
from modelserver.models.archives.store import ModelStore
from modelserver.models.archives.urls import UrlPolicy, scheme
from modelserver.models.environments.packages import Install, WorkerEnvironment
from modelserver.models.options.resolve import ModelOptions, OptionResolver, Registration
from modelserver.models.options.table import ModelConfig
from modelserver.models.reading import Reader
from modelserver.models.settings.settings import Settings
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from modelserver.models.changes import Change

_log = logging.getLogger("modelserver.models")

# Concurrent requests of an asynchronous handler, per worker.
MAX_ASYNC_CALLS = 256
# Reported to handlers, which compare it with the TorchServe that they were written for.
TORCHSERVE_VERSION = "0.12.0"
# The most rows that fit in a frame.
MAX_BATCH_SIZE = 1 << 20

# Workers of a model version that are started on other machines at once.
MAX_PLACING = 64

# Bytes of a frame's head per answer.
_HEAD_ROOM = 65536

AnyPool = TypeVar("AnyPool", bound=Pool)
Follow: TypeAlias = Callable[[ModelVersion], None]
MakeAffinity: TypeAlias = "Callable[[PoolLimits, ModelOptions, SequenceHeaders], Affinity]"


class VersionBuilder:
    """Everything that registrations share.

    ``sources`` says where each setting came from, ``workdir`` is a directory for unpacked archives,
    ``devices`` are the GPUs. ``cluster`` is set where there are other machines for workers, ``spawner`` where
    not each of them is a new Python process, ``affinities``, ``follows``, what gets each version before its
    workers are started, and when its options have changed, ``tracer``, the module that exports spans of
    handlers, and ``install``, what installs packages of models (its module does so on other machines), by
    extensions, which also add to ``reader`` and ``store``.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Mapping[str, str],
        workdir: Path,
        metrics: ServerMetrics,
        devices: DeviceRing,
    ) -> None:
        self._settings = settings
        self._sequence_headers = SequenceHeaders(
            settings.ts_header_key_sequence_id,
            settings.ts_header_key_sequence_start,
            settings.ts_header_key_sequence_end,
        )
        self.sources = sources
        self.store = ModelStore(settings.model_store)
        self._workdir = workdir
        self.metrics = metrics
        self._devices = devices
        self._cpus = usable_cpus()
        self._policy = UrlPolicy(settings.allowed_urls, settings.sets_allowed_urls)
        self._gate = StartGate()
        self.cluster: Machines | None = None
        self.spawner: Forker | None = None
        self.affinities: dict[str, MakeAffinity] = {}
        self.follows: list[tuple[Follow, Follow]] = []
        self.reader = Reader(trusts_pickles=settings.trust_pickles)
        self.tracer = ""
        self.install: Install | None = None
        self._ports = Ports(settings.initial_distribution_port)
        self._python = settings.python or sys.executable
        self._next_id: Callable[[], int] = itertools.count(settings.initial_worker_port).__next__

    async def open(
        self,
        registration: Registration,
        on_progress: Callable[[str], None] | None = None,
        *,
        beside: Path | None = None,
    ) -> ModelArchive:
        """Finds, downloads and unpacks the archive; the progress of a download is reported and logged.

        ``beside``: the downloaded file that the archive will replace; it is kept until then.
        """
        url, store = registration.url or "", self._settings.model_store
        hub = self.store.hub
        place = url if scheme(url) or hub is None else hub.without_options(url)
        transfer = Transfer(
            progress=Steps(url, on_progress),
            beside=beside,
            cache_size=self._settings.download_cache_size,
            signed=bool(registration.s3_sse_kms),
            trace=registration.trace,
        )
        trusted = registration.trusted
        located = await locate(
            place,
            store,
            self._policy,
            self._workdir,
            transfer,
            trusted=trusted,
            stores=self.store.remote,
            download=self.store.download,
            network=self.store.network,
        )
        try:
            if hub is not None and not registration.handler:
                located = await asyncio.to_thread(with_manifest, located, url, self._workdir, hub)
            return await self.reader.open(located, self._workdir, trusted=trusted)
        finally:
            located.release()

    def opening(
        self, registrations: Iterable[Registration], on_progress: Callable[[str], None]
    ) -> Iterator[Awaitable[ModelArchive]]:
        """The tasks that open the archives; one is opened while the model before it is registered."""
        tasks = (asyncio.create_task(self.open(each, on_progress)) for each in registrations)
        coming = next(tasks, None)
        while coming is not None:
            opening, coming = coming, next(tasks, None)
            yield opening

    async def find_file(self, url: str, store: Path | None, workdir: Path) -> tuple[Path, Path | None] | None:
        """An archive that is one file, by the rules for models, and what was downloaded for it.

        None for a folder and for a script. Raises as :func:`.sources.locate`.
        """
        download, network = self.store.download, self.store.network
        located = await locate(url, store, self._policy, workdir, download=download, network=network)
        if not located.path.is_file() or located.single is not None:
            return None
        return located.path, located.downloaded

    @property
    def grace(self) -> float:
        """Seconds that a removed version has to answer waiting requests."""
        return self._settings.unregister_model_timeout

    def close(self) -> None:
        """Ends the helper processes; no more archives can be opened."""
        self.reader.close()

    async def build(
        self,
        name: str,
        registration: Registration,
        archive: ModelArchive,
        *,
        at_startup: bool,
        on_progress: Callable[[str], None] | None = None,
    ) -> ModelVersion:
        """Creates the version and installs its packages, without starting workers.

        Raises:
            BadRequest: the batch size is too large, or packages cannot be installed.
            InternalError: not enough devices.
            InvalidModel: no handler, an unsupported runtime, or an invalid configuration.
        """
        manifest = archive.manifest
        version = manifest.model_version
        if self._runtime(name, registration, manifest) == "LSP":
            raise InvalidModel(
                f"The runtime LSP (TorchServe's C++ backend) of {archive.url} is not available here."
            )
        handler = self._handler(registration, archive)
        await look_again(self._devices, self._settings.number_of_gpu)
        options = self._resolve(name, registration, archive, at_startup=at_startup)
        for warning in options.warnings:
            _log.warning("%s %s: %s", name, version, warning)
        _check_batch_size(options)
        self._check_modes(name, archive, options)
        environment = await self._environment(name, archive, options, on_progress)
        metrics = self.metrics.model(name, version)
        spec = self._spec(name, handler, archive, options, environment)
        spec = replace(spec, measured=metrics.handler_metric, need=archive.need * max(1, options.processes))
        pool = self._pool(Pool, spec, options, metrics)
        model = self._version(name, registration, archive, options, pool, at_startup=at_startup)
        for prepare, _ in self.follows:
            prepare(model)
        return model

    def _version(
        self,
        name: str,
        registration: Registration,
        archive: ModelArchive,
        options: ModelOptions,
        pool: Pool,
        *,
        at_startup: bool,
    ) -> ModelVersion:
        return ModelVersion(
            name,
            archive.manifest.model_version,
            archive.url,
            archive,
            options,
            self._runtime(name, registration, archive.manifest),
            pool,
            pool.metrics,
            at_startup,
            self._sequence_headers if options.sequence_batching else None,
            options.service_envelope,
            registration,
            exposes_errors=self._settings.shows_errors,
        )

    def _runtime(self, name: str, registration: Registration, manifest: Manifest) -> str:
        fallback = self._settings.models.get(name, {}).get(manifest.model_version)
        return registration.runtime or (fallback and fallback.runtime_type) or manifest.runtime

    def _handler(self, registration: Registration, archive: ModelArchive) -> str:
        """The handler; only ``default_service_handler`` may be outside the archive. Raises InvalidModel."""
        handler = registration.handler or archive.manifest.handler
        if not handler and (default := self._settings.default_service_handler):
            if os.path.isabs(default):
                return default
            handler = default
        if not handler:
            has_manifest = (archive.model_dir / MANIFEST_PATH).is_file()
            advice = (
                "" if has_manifest else f" {MANIFEST_PATH} is missing; a script is named by its own path."
            )
            raise InvalidModel(
                f"The archive {archive.url} names no handler, and neither does the registration.{advice}"
            )
        archive.check_handler(handler)
        return handler

    def failed(self, name: str, version: str, registration: Registration, reason: str) -> ModelVersion:
        """A placeholder for a version that could not be restored."""
        archive = ModelArchive(registration.url or "", self._workdir / "absent", Manifest(name, version))
        options = self._resolve(name, registration, archive, at_startup=True)
        metrics = self.metrics.model(name, version)
        spec = self._spec(name, "", archive, options, WorkerEnvironment())
        pool = self._pool(FailedPool, spec, options, metrics)
        pool.reason = reason
        pool.expect(options.min_workers, options.max_workers)
        model = self._version(name, registration, archive, options, pool, at_startup=True)
        model.failure = reason
        return model

    def _resolve(
        self, name: str, registration: Registration, archive: ModelArchive, *, at_startup: bool
    ) -> ModelOptions:
        return OptionResolver(
            name,
            archive.manifest.model_version,
            registration,
            self._config(archive),
            self._settings,
            sources=self.sources,
            at_startup=at_startup,
            devices=self._devices.count,
            cpus=self._cpus,
        ).resolve()

    def _pool(
        self, kind: type[AnyPool], spec: WorkerSpec, options: ModelOptions, metrics: ModelMetrics
    ) -> AnyPool:
        name, limits, affinity = spec.load.model_name, _limits(options), None
        if options.sequence_batching and kind is Pool:
            affinity = self.affinities["sequences"](limits, options, self._sequence_headers)
        return kind(
            name,
            f"{name}_{spec.load.model_version}",
            spec,
            self._times(options),
            limits,
            next_id=self._next_id,
            devices=self._devices_for(options),
            metrics=metrics,
            affinity=affinity,
        )

    def _config(self, archive: ModelArchive) -> ModelConfig | None:
        read = archive.config
        if read is None:
            return None
        if read.problem:
            raise InvalidModel(f"{archive.url}: {read.problem}")
        for warning in read.warnings:
            _log.warning("%s: %s", archive.url, warning)
        return read.config

    def _check_modes(self, name: str, archive: ModelArchive, options: ModelOptions) -> None:
        """Refuses conflicting modes. Without GPUs, processes compute on the CPU, as in TorchServe."""
        demand = self._demand(options)
        devices = len(options.device_ids) or self._devices.count
        if demand is None and options.device_type == "gpu" and options.parallel_level > devices:
            raise InternalError(
                f"No enough gpu devices for model:{name} parallelLevel:{options.parallel_level}"
            )
        if options.processes > 1 and (options.continuous_batching or options.async_communication):
            raise InvalidModel(
                f"{archive.url}: model-config.yaml: continuousBatching and asyncCommunication are not "
                f"possible for a worker of {options.processes} processes, which all get the same batches"
            )
        if demand is not None and options.processes:
            try:
                demand.share(options.processes)
            except ValueError as error:
                raise InvalidModel(f"{archive.url}: resources: {error}") from None
        if options.continuous_batching and options.async_communication:
            modes = "continuousBatching and asyncCommunication"
            raise InvalidModel(f"{archive.url}: model-config.yaml: {modes} exclude each other")

    async def _environment(
        self,
        name: str,
        archive: ModelArchive,
        options: ModelOptions,
        on_progress: Callable[[str], None] | None,
    ) -> WorkerEnvironment:
        """The environment with the model's own packages (reference 10.6)."""
        manifest, requirements = archive.manifest, archive.manifest.requirements_file
        if requirements is not None and not self._settings.install_py_dep_per_model:
            text = "%s %s: the archive's %s is not installed: install_py_dep_per_model=false"
            _log.warning(text, name, manifest.model_version, requirements)
            requirements = None
        if requirements is None and not options.use_venv:
            return WorkerEnvironment()
        if self.install is None:
            raise InvalidModel(f"{archive.url}: this server installs no packages")
        if self._demand(options) is not None:
            # Each machine makes its own.
            return WorkerEnvironment()
        model = name, manifest.model_version
        try:
            environment = await self.install(
                model, archive.model_dir, requirements, venv=options.use_venv, tell=on_progress
            )
        except InvalidModel as error:
            raise InvalidModel(f"{archive.url}: {error.message}") from None
        archive.held.append(environment.release)
        return environment

    def _spec(
        self,
        name: str,
        handler: str,
        archive: ModelArchive,
        options: ModelOptions,
        environment: WorkerEnvironment,
    ) -> WorkerSpec:
        settings = self._settings
        load = Load(
            model_name=name,
            model_version=archive.manifest.model_version,
            model_dir=str(archive.model_dir),
            handler=handler,
            batch_size=options.batch_size,
            envelope=options.service_envelope,
            config_file=archive.manifest.config_file or "",
            decode_input_request=settings.decode_input_request,
            limit_max_image_pixels=settings.limit_max_image_pixels,
            max_response_size=settings.max_response_size,
            server_version=TORCHSERVE_VERSION,
            # Retrying half of a batch would repeat steps of its sequences.
            isolate=settings.isolate_failures and not options.sequence_batching,
            sequence_headers=self._sequence_headers,
            expose=settings.shows_errors,
            tracer=self.tracer,
            types=not settings.as_torchserve,
            gpu_required=settings.require_gpu,
            mode=_mode(options),
            outputs=[OutputSpec(spec.name, spec.datatype, spec.shape) for spec in options.signature.outputs],
        )
        launcher, path = self._launcher(archive, options), settings.metrics_config
        return WorkerSpec(
            load=load,
            threads=self._cpus,
            own_threads=options.worker_threads,
            frame_limit=self._frame_limit(options),
            hidden_variables=settings.blacklist_env_vars,
            extra_environment=environment.variables,
            named_files={} if path is None else {METRICS_CONFIG: path},
            python=environment.python or self._python,
            spawner=self.spawner,
            launcher=launcher,
            # Elsewhere other memory counts, and no model waits for another's machine.
            gate=self._gate if launcher is None else StartGate(MAX_PLACING, lambda: math.inf),
            ranks=self._ranks(options),
            concurrency=_concurrency(options),
            idempotent=options.idempotent,
            ipex=(settings.ipex_enable, settings.ipex_gpu_enable),
        )

    def _demand(self, options: ModelOptions) -> Demand | None:
        """What a worker needs on another machine; None if it runs on this one."""
        if self.cluster is None or isinstance(options.resources, str):
            return None
        return replace(options.resources, placement=options.placement)

    def _launcher(self, archive: ModelArchive, options: ModelOptions) -> Launcher | None:
        demand = self._demand(options)
        if self.cluster is None or demand is None:
            return None
        requirements = archive.manifest.requirements_file if self._settings.install_py_dep_per_model else None
        module = "" if self.install is None else self.install.__module__
        return self.cluster.launcher(demand, (requirements or "", options.use_venv, module))

    def _frame_limit(self, options: ModelOptions) -> int:
        return options.batch_size * (self._settings.max_response_size + _HEAD_ROOM) + _HEAD_ROOM

    def reconfigure(self, model: ModelVersion, change: Change) -> None:
        """Applies the change to a running version. Raises BadRequest if the version does not support it."""
        options = change.applied_to(model.options)
        _check_batch_size(options)
        model.pool.reconfigure(
            _limits(options),
            self._times(options),
            batch_size=options.batch_size,
            frame_limit=self._frame_limit(options),
        )
        model.options = options
        for _, changed in self.follows:
            changed(model)

    def _times(self, options: ModelOptions) -> WorkerTimes:
        return WorkerTimes(
            startup=options.startup_timeout,
            response=options.response_timeout,
            silence=self._settings.silence_timeout,
            max_retry=options.max_retry_timeout,
        )

    def _ranks(self, options: ModelOptions) -> Ranks | None:
        groups = self._groups(options)
        if not options.processes and not groups:
            return None
        return Ranks(
            processes=options.processes,
            broadcast=options.parallel_type != "pp",
            groups={group[0]: group for group in groups},
            threads=options.rank_threads,
            ports=self._ports,
        )

    def _groups(self, options: ModelOptions) -> list[tuple[int, ...]]:
        """The devices of each worker that spans several; from the model's own list if it has one."""
        if options.device_type == "cpu" or not options.parallel_level or self._demand(options) is not None:
            return []
        return groups_of(options.device_ids or range(self._devices.count), options.parallel_level)

    def _devices_for(self, options: ModelOptions) -> DeviceList:
        if options.device_type == "cpu" or self._demand(options) is not None:
            return DeviceList(())
        if groups := self._groups(options):
            return DeviceList([group[0] for group in groups])
        return DeviceList(options.device_ids) if options.device_ids else self._devices

    async def dismantle(self, model: ModelVersion) -> None:
        """Serves waiting requests for up to ``grace`` seconds, then removes the version and its files."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.grace
        await model.pool.drain(self.grace)
        await model.pool.close(max(0.0, end - loop.time()))
        await asyncio.to_thread(model.archive.remove)


DOWNLOADING = "Downloading"
"""How the progress of a download begins."""


class Steps:
    """Reports the progress of a download, every 10 %, or every 64 MiB if its size is unknown."""

    def __init__(self, url: str, tell: Callable[[str], None] | None) -> None:
        self._name = url.rpartition("/")[2].partition("?")[0]
        self._tell = tell
        self._step = 0

    def __call__(self, received: int, total: int | None) -> None:
        step = received * 10 // total if total else received >> 26
        if step == self._step:
            return
        self._step = step
        text = f"{DOWNLOADING} {self._name}: " + (f"{step * 10} %" if total else f"{received >> 20} MiB")
        _log.info("%s", text)
        if self._tell is not None:
            self._tell(text)


def _mode(options: ModelOptions) -> str:
    """How workers receive requests (reference 8.10, 8.11)."""
    if options.async_communication:
        return ASYNC
    return CONTINUOUS if options.continuous_batching else ""


def _concurrency(options: ModelOptions) -> int:
    """Concurrent requests per worker, 0 if it runs one batch at a time.

    TorchServe does not limit asynchronous handlers, and ``batchSize`` does not apply to them.
    """
    if options.async_communication:
        return max(MAX_ASYNC_CALLS, options.batch_size)
    return options.batch_size if options.continuous_batching else 0


def _check_batch_size(options: ModelOptions) -> None:
    if options.batch_size > MAX_BATCH_SIZE:
        raise BadRequest(f"batch_size={options.batch_size}: at most {MAX_BATCH_SIZE} is possible")


def _limits(options: ModelOptions) -> PoolLimits:
    return PoolLimits(
        # Where requests join and leave one by one, batches are not collected first.
        batch_size=1 if _mode(options) else options.batch_size,
        policy=options.batch_policy,
        max_delay=max(0, options.max_batch_delay) / 1000.0,
        max_requests=options.job_queue_size,
        max_bytes=options.job_queue_bytes,
        tickets=options.use_job_ticket,
        max_worker_requests=options.max_worker_requests,
        options=options.values,
    )
