"""What an extension is, and what the server offers it.

An extension is a folder ``ext/NAME`` with a module ``extension`` that has a coroutine function ``extend``,
and a row in the table of :mod:`modelserver.ext`, which says with which settings it is on. One that is off is
not imported.

The server calls ``extend`` before the first models load, with the :class:`Host`: what an extension may use,
and where it adds what it does. It raises ConfigError, which ends the start, if it cannot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from modelserver.engine.pools.spec import Machines, StoppableForker
    from modelserver.engine.telemetry.access import AccessLog, OnResponse
    from modelserver.models.archives.single_file import LayOut, MakeNetwork
    from modelserver.models.archives.store import ObjectStores
    from modelserver.models.builder import MakeAffinity
    from modelserver.models.options.resolve import Registration
    from modelserver.models.registry import Registry
    from modelserver.models.settings.address import Address
    from modelserver.models.settings.settings import Settings
    from modelserver.models.version import ModelVersion, Router
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import AddRoutes, Role, Services
    from modelserver.surface.http.cors import Pairs
    from modelserver.surface.http.edge import Edge
    from modelserver.surface.http.exchange import Exchange, HotRoutes
    from modelserver.surface.inference.inference import Find, InferenceProtocol, MakeCodec
    from modelserver.surface.tls.context import Certificate
    from modelserver.surface.watching import Watch


Act: TypeAlias = "Callable[[], Awaitable[None]]"
Listing: TypeAlias = "Callable[[], Awaitable[Sequence[Registration]]]"


class Listener(Protocol):
    """Sockets besides those of HTTP, or instead of them."""

    async def open(self) -> None:
        """Accepts connections. Raises ConfigError, or OSError for an address that is taken."""

    def certify(self, certificate: Certificate) -> None:
        """Uses a renewed certificate for new connections."""

    async def refuse(self) -> None:
        """Accepts no more connections; what has begun goes on."""

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for what has begun, and closes all connections."""


class Rpc(Protocol):
    """A method of the Open Inference service over gRPC; the request is its message."""

    def __call__(
        self, request: Any, check_local: Callable[[], None], /
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yields fields of the response, as JSON has them, in one part or several.

        ``check_local`` raises MethodNotAllowed for clients on other machines.
        """


class ExtensionRow(NamedTuple):
    """A row of the table of extensions.

    ``configuration`` finds the file of settings in the folder of snapshots, for starts without any.
    """

    module: str
    is_on: Callable[[Host], bool]
    configuration: Callable[[Path], Path | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What answers at the listeners; made when all extensions are open.

    ``hot`` are the routes of inference, ``unwatched`` the same for requests that no watcher is to see;
    ``paths`` are those of protocols that extensions add. ``watch_request`` and ``watch_call`` are called with
    requests over gRPC, and with whole calls, if anybody watches those. ``edge`` makes the application of an
    address. ``sockets`` are bound, and do not listen yet; ``roles`` are those of their addresses.
    ``headers`` are those of every answer.
    """

    services: Services
    hot: HotRoutes
    unwatched: HotRoutes
    paths: tuple[tuple[str, str], ...]
    watch_request: Watch | None
    watch_call: Watch | None
    edge: Callable[[Address], Edge]
    roles: Mapping[Address, AbstractSet[Role]]
    sockets: Mapping[Address, socket.socket]
    on_response: OnResponse
    headers: Pairs
    certificate: Certificate | None
    stamped_log: bool


@dataclass(slots=True)
class Host:
    """The server, for its extensions.

    ``services`` are its parts, with the ``settings``, which do not change; ``workdir`` is a directory that is
    removed when it ends; ``access`` its access log; ``notice`` shows a line to whoever has started it, and
    ``progress`` a step of the start. ``snapshots`` is the folder of snapshots, None for none; ``properties``
    are the settings that were set, as text. Generated tokens are written to ``key_file``; None: clients need
    no tokens.

    What extensions add is in the other fields. ``first`` is called before the first models are loaded, with a
    function that lists them, and returns those that are still to be loaded. Of each pair in ``keeps``, the
    first is awaited when the server listens, before it reports that; the second, if the first was, when it
    has answered its last requests, before their workers end. What is pushed to ``closing`` is closed after
    that, or if the start fails, in reverse order; it may take a few seconds. ``certificate`` is for TLS;
    ``renew`` runs while the server listens, and passes on those that replace it; ``spawner`` forks workers;
    ``lay_out`` makes archives' folders of single files, ``network`` of networks of torchvision.
    """

    services: Services
    settings: Settings = field(init=False)
    workdir: Path
    access: AccessLog
    notice: Callable[[str], None]
    progress: Callable[[str], None] = lambda _: None
    snapshots: Path | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    key_file: Path | None = None
    watches: list[tuple[Watch, bool]] = field(default_factory=list)
    listeners: list[tuple[Callable[[Endpoints], Listener], Address | None]] = field(default_factory=list)
    added_routes: list[tuple[Role, AddRoutes]] = field(default_factory=list)
    mounts: list[tuple[Role, str, Callable[[Endpoints], ASGIApp]]] = field(default_factory=list)
    protocols: list[InferenceProtocol] = field(default_factory=list)
    rpcs: dict[str, Rpc] = field(default_factory=dict)
    restores: list[Callable[[], Awaitable[bool]]] = field(default_factory=list)
    settles: list[Callable[[float], Awaitable[None]]] = field(default_factory=list)
    tasks: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    keeps: list[tuple[Act, Act]] = field(default_factory=list)
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    first: Callable[[Listing], Awaitable[Sequence[Registration]]] | None = None
    certificate: Certificate | None = None
    renew: Callable[[Callable[[Certificate], None]], Coroutine[Any, Any, None]] | None = None
    spawner: StoppableForker | None = None
    lay_out: LayOut | None = None
    network: MakeNetwork | None = None

    def __post_init__(self) -> None:
        self.settings = self.services.settings

    @property
    def registry(self) -> Registry:
        """The models."""
        return self.services.registry

    # -- what extensions add

    def launch(self, machines: Machines) -> None:
        """Workers start there, unless their model says otherwise."""
        self.registry.builder.cluster = machines

    def fetch(self, scheme: str, stores: ObjectStores) -> None:
        """Archives may come from object stores at URLs of this scheme, if ``allowed_urls`` permits them."""
        self.registry.builder.store.remote[scheme] = stores

    def route(self, router: Router) -> None:
        """``router`` divides the requests for a model that name no version among its versions."""
        self.registry.router = router

    def pool(self, kind: str, make: MakeAffinity) -> None:
        """``make`` makes the affinity of models whose workers hold a state of this kind: ``sequences``."""
        self.registry.builder.affinities[kind] = make

    def prepare(
        self,
        prepare: Callable[[ModelVersion], None],
        *,
        changed: Callable[[ModelVersion], None] = lambda _: None,
    ) -> None:
        """``prepare`` is called with each version before its workers start, and may refuse it by an error.

        ``changed`` is called with each running version whose options have changed. What the extension sees of
        a version, it can store in its ``histories``, which pass to the version that replaces it.
        """
        self.registry.builder.follows.append((prepare, changed))

    def watch(self, watch: Watch, *, whole_calls: bool = False) -> None:
        """``watch`` is called with each request for a model, and may return a watcher of it.

        ``whole_calls``: a stream of requests over gRPC is watched as one.
        """
        self.watches.append((watch, whole_calls))

    def answer(
        self,
        name: str,
        paths: str,
        *,
        codec: MakeCodec | None = None,
        serve: Callable[[Exchange], None] | None = None,
        find: Callable[[Find], Find] | None = None,
    ) -> None:
        """Adds a protocol of inference over REST; the arguments are those of InferenceProtocol."""
        # As open_extensions.
        from modelserver.surface.inference.inference import InferenceProtocol  # noqa: PLC0415

        self.protocols.append(InferenceProtocol(name, paths, codec, serve, find))

    def rpc(self, name: str, respond: Rpc) -> None:
        """``respond`` serves the Open Inference service's method of this name over gRPC."""
        self.rpcs[name] = respond

    def routes(self, role: Role, module: str, *arguments: Any, **named: Any) -> None:
        """``add_routes`` of the module is called with the application of the listener with this role, the
        services and these arguments, when it is built. The module is imported then, as FastAPI is.

        The first route that fits serves: those of extensions come before the server's own.
        """

        def add(app: Application, services: Services) -> None:
            import_module(module).add_routes(app, services, *arguments, **named)

        self.added_routes.append((role, add))

    def mount(self, role: Role, path: str, make: Callable[[Endpoints], ASGIApp]) -> None:
        """An ASGI application of its own answers at ``path`` and below."""
        self.mounts.append((role, path, make))

    def listen(self, make: Callable[[Endpoints], Listener], *, at: Address | None = None) -> None:
        """Adds sockets. ``at``: the address of HTTP that this listener takes over."""
        self.listeners.append((make, at))

    def restore(self, restore: Callable[[], Awaitable[bool]]) -> None:
        """Awaited when the first models have loaded, before the server listens; False: something failed."""
        self.restores.append(restore)

    def settle(self, settle: Callable[[float], Awaitable[None]]) -> None:
        """Awaited when the server stops and accepts no more; gets the seconds that requests have left."""
        self.settles.append(settle)

    def run(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs while the server listens."""
        self.tasks.append(task)


async def open_extensions(table: Mapping[str, ExtensionRow], host: Host) -> None:
    """Extends the host by those that are on, in the order of the table.

    Raises ConfigError after closing what they have opened.
    """
    # The health check of containers imports this module, and shall take little time.
    from asyncio import to_thread  # noqa: PLC0415

    try:
        for row in table.values():
            if row.is_on(host):
                module = await to_thread(import_module, row.module)
                await module.extend(host)
    except BaseException:
        await host.closing.aclose()
        raise
