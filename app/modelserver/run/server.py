"""The server's life cycle: bind, load, listen, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from modelserver import __version__
from modelserver.engine.pools.devices import find_devices
from modelserver.engine.pools.interpreter import check_interpreter
from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.logs import log_directories
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.metrics_config import load_metrics_config
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.engine.telemetry.text import shortened
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.engine.wire.marks import Mark
from modelserver.engine.workdir import work_directory
from modelserver.errors import ConfigError
from modelserver.extension import Act, ExtensionRow, Host, open_extensions
from modelserver.models.builder import VersionBuilder
from modelserver.models.loading import initial, load_first, tell_first_loads
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.address import Address
from modelserver.models.settings.load import LoadedSettings, set_properties
from modelserver.models.settings.settings import Settings
from modelserver.run.binding import bind, roles_by_address
from modelserver.run.gauges import update_pool_gauges
from modelserver.run.readiness import STARTED_LINE
from modelserver.run.standby import active
from modelserver.surface.api.late_app import LateApp
from modelserver.surface.api.services import Role, Services
from modelserver.surface.auth.policy import WARNING, notice, wants_tokens
from modelserver.surface.auth.scopes import KEY_FILE, Scope
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

if TYPE_CHECKING:
    from modelserver.engine.pools.spec import StoppableForker
    from modelserver.run.listeners import Listeners


_log = logging.getLogger("modelserver.server")

MAX_DESCRIPTORS = 1 << 20
# The number of M_ARENA_MAX in glibc's malloc.h.
_ARENA_MAX = -8
# Seconds for last answers.
_CLOSING = 5.0


class Reports(NamedTuple):
    """Functions of the program that starts the server, which the server calls.

    ``started`` is called when the listeners accept connections, with whether all models have loaded, as far
    as known; ``progress`` with each step of the start; ``notice`` with the addresses, restored models and
    load results.
    """

    started: Callable[[bool], None] = lambda _: None
    progress: Callable[[str], None] = lambda _: None
    notice: Callable[[str], None] = lambda _: None


class Server:
    """Composed once from its settings; :meth:`run` returns when it has stopped.

    Args:
        loaded: the settings and their sources.
        reports: of the start.
        stamped_log: whether access lines include their time (see :class:`AccessLog`).
        wait: the start is reported only after all models have loaded or failed.
        snapshots: the folder of snapshots; None disables them (``--ncs``).
        registrations: the models to load instead of those in the settings.
        beside: runs while the server listens; cancelled when it stops.
        spawner: what forks workers, if it was started before.
        extensions: the table of those there are.
        apps_late: listens before what is needed only for management, metadata and documentation is imported;
            the first such request may wait for that.

    Raises ConfigError for an invalid ``metrics_config``.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        reports: Reports,
        *,
        stamped_log: bool,
        snapshots: Path | None = None,
        wait: bool = False,
        registrations: Sequence[Registration] | None = None,
        beside: Callable[[Registry], Coroutine[Any, Any, None]] | None = None,
        spawner: StoppableForker | None = None,
        apps_late: bool = False,
        extensions: Mapping[str, ExtensionRow] = MappingProxyType({}),
    ) -> None:
        self._loaded = loaded
        self._settings = settings = loaded.settings
        self._reports = reports
        self._stamped_log = stamped_log
        config = settings.metrics_config
        self._metrics_config = None if config is None else load_metrics_config(config)
        self._snapshots = snapshots
        self._wait = wait
        self._registrations = registrations
        self._beside = beside
        self._spawner = spawner
        self._apps_late = apps_late
        self._extensions = extensions
        self._began = time.monotonic()
        self._all_loaded = True
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT; a second one stops it at once.

        A standby first waits until it is the active one. Raises ConfigError (addresses, the shared folder).
        """
        if not self._settings.standby:
            await self._listen()
            return
        if self._snapshots is None:
            raise ConfigError("standby=true: snapshots are needed, and --no-config-snapshots turns them off")
        async with active(self._snapshots, self._on_standby):
            await self._listen()

    def _on_standby(self, other: str) -> None:
        _log.info("Standby: %s is active, this server takes over when it ends", other)
        self._reports.progress(f"Standing by while {other} is active")

    async def _listen(self) -> None:
        settings = self._settings
        loop = asyncio.get_running_loop()
        raise_descriptor_limit()
        share_heap()
        # Little garbage has cycles, and of a thousand models every search takes long.
        gc.set_threshold(50_000, 20, 100)
        if settings.python:
            await asyncio.to_thread(check_interpreter, settings.python)
        with contextlib.ExitStack() as stack:
            sockets = {
                address: stack.enter_context(bound_to(address, roles))
                for address, roles in roles_by_address(settings).items()
            }
            log_notice(settings)
            workdir = stack.enter_context(work_directory())
            if ended := await asyncio.to_thread(Mark.end_orphans):
                _log.warning("Ended %d worker processes of servers that are gone", ended)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal)
            await self._serve(sockets, workdir)

    def stop(self) -> None:
        """Ends :meth:`run` as SIGTERM does."""
        self._stop.set()

    async def _serve(self, sockets: dict[Address, socket.socket], workdir: Path) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        metrics = ServerMetrics(
            mode=settings.metrics_mode,
            config=self._metrics_config,
            auto_detect=settings.model_metrics_auto_detect,
            as_torchserve=settings.as_torchserve,
        )
        devices = await find_devices(settings.number_of_gpu, required=settings.requires_local_gpu)
        builder = VersionBuilder(settings, self._loaded.sources, workdir, metrics, devices)
        registry = Registry(builder, tells_names=settings.tells_names)
        access = AccessLog(
            stamped=self._stamped_log, names_failures=not settings.as_torchserve, probes=settings.log_probes
        )
        access.start(loop)
        metrics.on_render(lambda: update_pool_gauges(registry))
        log_configuration(settings)
        intake = Intake.of(settings)
        services = Services(
            registry,
            metrics,
            settings,
            tokens=None,
            off_loop=OffLoop(settings.max_request_size),
            intake=intake,
            outgoing=Outgoing.of(settings, intake.give_back, settings.front_ends),
            shared=SharedMemory(
                allowed=settings.shared_memory_prefix is not None, most=settings.max_request_size
            ),
        )
        host = Host(services, workdir, access, self._notice, self._reports.progress, spawner=self._spawner)
        host.snapshots, host.properties = self._snapshots, set_properties(self._loaded)
        await open_all(self._extensions, host)
        builder.spawner, builder.store.network = host.spawner, host.network
        builder.reader.lay_out = host.lay_out
        try:
            await self._load_and_run(host, sockets)
        finally:
            await host.closing.aclose()
            access.close()
            host.services.off_loop.close()
        _log.info("modelserver stopped.")

    async def _load_and_run(self, host: Host, sockets: dict[Address, socket.socket]) -> None:
        """Loads the first models, listens until the server is to stop, and drains it."""
        registry, loop = host.registry, asyncio.get_running_loop()
        stopping = loop.create_task(self._stop.wait())
        loading = loop.create_task(self._load(host))
        made: tuple[Listeners, list[LateApp]] | None = None
        try:
            # While the first models load: it takes about as long.
            module = await asyncio.to_thread(import_module, "modelserver.run.listeners")
            on_response = host.access.counting(host.services.metrics.response)
            made = module.make_listeners(host, sockets, on_response, stamped_log=self._stamped_log)
        finally:
            if made is None:
                loading.cancel()
                await registry.close(grace=0.0)
        listeners, apps = made
        renewing = [] if host.renew is None else [loop.create_task(host.renew(listeners.certify))]
        drained: list[Act] = []
        building = loop.create_task(build_all([] if self._apps_late else apps))
        await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not stopping.done():
            loading.result()
            await self._restore(host, stopping)
            await building
            await self._open(listeners, registry)
            for started, end in host.keeps:
                await started()
                drained.append(end)
            await self._run(host, stopping, apps)
        for task in (loading, building, *renewing):
            task.cancel()
        await self._shut_down(host, listeners, drained)

    @staticmethod
    async def _open(listeners: Listeners, registry: Registry) -> None:
        """Accepts connections; if that fails, ends the models and raises ConfigError."""
        try:
            await listeners.open()
        except (ConfigError, OSError) as error:
            await registry.close(grace=0.0)
            if isinstance(error, ConfigError):
                raise
            # Another server bound the address at the same time, and listened first.
            raise ConfigError(f"Cannot listen: {error.strerror or error}") from error

    async def _restore(self, host: Host, stopping: asyncio.Task[Any]) -> None:
        """What extensions load after the first models."""
        for restore in host.restores:
            restoring = asyncio.ensure_future(restore())
            await asyncio.wait({stopping, restoring}, return_when=asyncio.FIRST_COMPLETED)
            if not restoring.done():
                restoring.cancel()
                return
            self._all_loaded &= restoring.result()

    async def _run(self, host: Host, stopping: asyncio.Task[Any], apps: Iterable[LateApp]) -> None:
        """Reports that the server listens, and returns when it is to stop."""
        loop = asyncio.get_running_loop()
        registry, metrics = host.registry, host.services.metrics
        running: list[asyncio.Task[Any]] = [loop.create_task(task()) for task in host.tasks]
        loop_watch.start(metrics.stalled)
        host.services.intake.give_back()
        if not self._apps_late:
            freeze_garbage()
        running.append(await self._report_start(registry, stopping))
        if self._beside is not None:
            running.append(loop.create_task(self._beside(registry)))
        if self._apps_late:
            # The last part of the start.
            building = loop.create_task(build_all(apps))
            building.add_done_callback(lambda _: freeze_garbage())
            running.append(building)
        await stopping
        loop_watch.close()
        for task in running:
            task.cancel()

    async def _report_start(self, registry: Registry, stopping: asyncio.Task[Any]) -> asyncio.Task[bool]:
        """Reports the addresses and the load results of models."""
        for line in address_lines(self._settings):
            _log.info("%s", line)
            self._reports.notice(line)
        # Only a command that waits can still show the load results.
        tell = self._reports.notice if self._wait else lambda _: None
        first = tell_first_loads(registry.versions(), tell, self._began)
        reporting = asyncio.create_task(first)
        if self._wait:
            await asyncio.wait({stopping, reporting}, return_when=asyncio.FIRST_COMPLETED)
        loaded = self._all_loaded and (not reporting.done() or reporting.result())
        self._reports.started(loaded)
        # The console has it from the command.
        _log.info(STARTED_LINE, extra={"brief": ""})
        return reporting

    async def _load(self, host: Host) -> None:
        async def listing() -> Sequence[Registration]:
            if self._registrations is not None:
                return self._registrations
            return await initial(self._settings, host.registry.builder.store)

        self._all_loaded = await load_first(
            host.registry,
            listing if host.first is None else partial(host.first, listing),
            on_progress=host.progress,
            on_notice=host.notice,
        )

    def _notice(self, text: str) -> None:
        self._reports.notice(shortened(text, 4000))

    async def _shut_down(self, host: Host, listeners: Listeners, drained: Sequence[Act]) -> None:
        """Refuses new connections, answers waiting requests, then ends the workers.

        ``drained`` is awaited in between.
        """
        registry, began, grace = host.registry, time.monotonic(), self._settings.drain_timeout
        _log.info("Stopping: serving waiting requests for up to %g s", grace)
        await listeners.refuse()
        await host.services.off_loop.settle(grace)
        for settle in host.settles:
            await settle(max(0.0, grace - (time.monotonic() - began)))
        await registry.drain(max(0.0, grace - (time.monotonic() - began)))
        for end in drained:
            await end()
        if host.spawner is not None:
            # Workers may be waiting for it.
            host.spawner.refuse()
        # Refuses requests left after the grace, while their clients are still connected.
        await registry.close(grace=2.0)
        await listeners.close(_CLOSING)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            _log.warning("Second signal: stopping at once")
            logging.shutdown()
            os._exit(1)
        self._stop.set()


async def open_all(table: Mapping[str, ExtensionRow], host: Host) -> None:
    """Opens the extensions. Raises ConfigError, also where tokens are required and none of them has any."""
    required = wants_tokens(host.settings, os.environ)
    host.key_file = Path.cwd() / KEY_FILE if required else None
    if not required:
        # The processes that extensions start inherit the environment.
        for scope in Scope:
            os.environ.pop(scope.variable, None)
    await open_extensions(table, host)
    if required and host.services.tokens is None:
        await host.closing.aclose()
        raise ConfigError("Tokens are required, and no extension of this server has them.")


async def build_all(apps: Iterable[LateApp]) -> None:
    """Builds the applications one after the other."""
    for app in apps:
        await app.build()


@contextlib.contextmanager
def bound_to(address: Address, roles: set[Role]) -> Iterator[socket.socket]:
    """A socket bound to the address for these roles; its file, if any, is removed with it."""
    bound = bind(address, ", ".join(f"{role}_address" for role in sorted(roles)))
    try:
        yield bound
    finally:
        bound.close()
        if address.scheme == "unix":
            Path(address.path).unlink(missing_ok=True)


def raise_descriptor_limit() -> None:
    """Raises the limit of open descriptors, usually 1024, to what the system permits (F38)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def share_heap() -> None:
    """Lets all threads of this process allocate from one heap; to be called before there are any.

    By default glibc gives most threads a heap of their own. Python rebuilds its table of interned strings, of
    2 MB, in whatever thread adds one too many, as each registration's paths do: every such heap would keep
    that much. Python's lock lets one thread run at a time, so sharing costs nothing.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and "arena_max" not in os.environ.get("GLIBC_TUNABLES", ""):
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def freeze_garbage() -> None:
    """Excludes existing objects, which live as long as the server, from garbage collection."""
    gc.collect()
    gc.freeze()


def address_lines(settings: Settings) -> list[str]:
    """The addresses of the server, its documentation, console and logs."""
    lines = [f"Inference: {settings.inference_address}, Management: {settings.management_address}"]
    if settings.enable_metrics_api:
        lines[0] += f", Metrics: {settings.metrics_address}"
    address = settings.inference_address
    pages = "" if address.scheme == "unix" else f"Documentation: {address}/docs, "
    if (console := settings.console_url) is not None:
        pages += f"Console: {console}, "
    if settings.log_files:
        pages += f"Logs: {log_directories()[0].absolute()}"
    return [*lines, pages.removesuffix(", ")]


def log_notice(settings: Settings) -> None:
    """Logs who may use the server, before tokens are removed from the environment."""
    for line in notice(settings, os.environ, Path.cwd()):
        level = logging.WARNING if line.startswith(WARNING) else logging.INFO
        _log.log(level, "%s", line.removeprefix(WARNING))


def log_configuration(settings: Settings) -> None:
    """Logs the configuration (reference 15.5)."""
    _log.info("modelserver version: %s, Python %s", __version__, sys.version.split()[0])
    _log.info("Defaults: %s", settings.compat_defaults)
    _log.info("Inference address: %s", settings.inference_address)
    _log.info("Management address: %s", settings.management_address)
    _log.info("Metrics address: %s", settings.metrics_address if settings.enable_metrics_api else "off")
    _log.info("Model store: %s", settings.model_store)
    _log.info("Metrics mode: %s", settings.metrics_mode)
    _log.info("Model API enabled: %s", str(settings.enable_model_api).lower())
