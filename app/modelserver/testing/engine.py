"""The part of a server that serves a model: registry, worker, and the routes of inference; no listeners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from modelserver.engine.pools.devices import find_devices
from modelserver.engine.pools.spec import Forker
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.engine.workdir import work_directory
from modelserver.ext.autoscaling.extension import LateAutoscaler
from modelserver.ext.files.extension import lay_out, make_network
from modelserver.ext.openai.codec import NAME, PATHS, OpenAI
from modelserver.ext.packages.extension import environments_of
from modelserver.ext.paths import own_paths
from modelserver.ext.sequences.extension import make_affinity
from modelserver.ext.stores.extension import Stores
from modelserver.models.builder import VersionBuilder
from modelserver.models.loading import default_name
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.load import LoadedSettings
from modelserver.models.version import ModelVersion
from modelserver.surface.api.services import Services
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.inference.inference import InferenceApi, InferenceProtocol
from modelserver.testing.loopback import Loopback

if TYPE_CHECKING:
    from modelserver.testing.answer import Answer

_GRACE = 2.0  # seconds for workers to end by themselves

EngineRequest = tuple[str, str, bytes, "Mapping[str, str]"]  # method, path, body and headers of a request


class Engine:
    """Answers requests to one model; for use in its event loop."""

    def __init__(self, services: Services, api: InferenceApi, model: ModelVersion) -> None:
        self.services = services
        self.model = model
        self.api = api

    async def send(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        """The answers to requests that arrive at the same moment."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Answer]] = []
        for method, path, body, headers in requests:
            target = self.api.find(path.encode())
            if target is None:
                raise ValueError(f"{path!r} is not a path for inference")
            ended = loop.create_future()
            answers.append(ended)
            pairs = ((name.lower(), value) for name, value in headers.items())
            lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
            self.api.serve(Loopback(ended).exchange(target, body, lines, method.encode()))
        return list(await asyncio.gather(*answers))


@contextlib.asynccontextmanager
async def engine(
    loaded: LoadedSettings, registration: Registration, spawner: Forker | None = None
) -> AsyncIterator[Engine]:
    """The engine of a model that has been loaded. Raises ModelServerError if it cannot be.

    ``spawner`` starts the workers; without one each is an ordinary process.
    """
    settings = loaded.settings
    with work_directory() as workdir:
        metrics = ServerMetrics(mode=settings.metrics_mode)
        devices = await find_devices(settings.number_of_gpu, required=settings.requires_local_gpu)
        builder = VersionBuilder(settings, loaded.sources, workdir, metrics, devices)
        builder.spawner = spawner
        builder.store.remote |= Stores.by_scheme()
        builder.store.hub = Stores()
        builder.reader.lay_out, builder.store.network = lay_out, make_network
        builder.affinities["sequences"] = make_affinity
        builder.install = environments_of(settings, workdir).provide
        registry = Registry(builder, tells_names=settings.tells_names)
        paths = own_paths.OwnPaths(registry)
        scale = LateAutoscaler().follow
        builder.follows += [(paths.claim, lambda _: None), (scale, scale)]
        off_loop = OffLoop(settings.max_request_size)
        limits = RequestLimits(settings.max_request_instances, settings.max_request_tensors)
        try:
            name = default_name(registration.url or "")
            model = await registry.register(registration, at_startup=True, fallback_name=name)
            await registry.wait_loaded(model)
            protocols = [
                InferenceProtocol(NAME, PATHS, OpenAI),
                InferenceProtocol(own_paths.NAME, own_paths.NONE, find=paths.finder),
            ]
            api = InferenceApi(registry, settings.max_request_size, off_loop, limits, protocols=protocols)
            intake = Intake.of(settings)
            services = Services(
                registry,
                metrics,
                settings,
                tokens=None,
                off_loop=off_loop,
                intake=intake,
                outgoing=Outgoing.of(settings, intake.give_back),
                shared=SharedMemory(allowed=False, most=0),
            )
            yield Engine(services, api, model)
            if model.archive.downloaded is not None:
                await registry.unregister(model.name, model.version)
        finally:
            await registry.close(_GRACE)
            off_loop.close()
