"""Archives, pools and a builder of versions for tests of the registry that need no files and no processes."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from modelserver.errors import ModelNotFound
from modelserver.models import builder
from modelserver.models.archives.manifest import Manifest
from modelserver.models.options.resolve import ModelOptions


class Archive:
    """An archive of a name and a version, written as url ``name-version.mar``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.removed = False
        self.downloaded = None
        self.closed = False
        name, _, version = url.removesuffix(".mar").partition("-")
        self.manifest = Manifest(name, version or "1.0")

    def remove(self) -> None:
        self.removed = True

    def close(self) -> None:
        self.closed = True


class Pool:
    """A pool whose workers load, or fail, when the test says so."""

    def __init__(self) -> None:
        self.label = "m_1.0"
        self.workers: list[Any] = []
        self.min_workers = self.max_workers = 0
        spec = SimpleNamespace(need=0, launcher=None)
        self.crew = SimpleNamespace(spec=spec, resize=self.resize, on_demand=None)
        self.healthy = self.ready = True
        self.admission = SimpleNamespace(closing=False)
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drained = self.closed = False
        self.successor: Pool | None = None

    def scale(self, fewest: int, most: int) -> list[Any]:
        self.min_workers, self.max_workers = fewest, most
        started = self._workers(fewest - len(self.workers))
        self.workers = [*self.workers, *started][: most or fewest]
        return started

    def resize(self, count: int) -> None:
        self.workers = self._workers(count)

    def _workers(self, count: int) -> list[Any]:
        process = SimpleNamespace(pids=[os.getpid()])
        return [SimpleNamespace(process=process, first_load=self.loaded) for _ in range(count)]

    def statistics(self) -> Any:
        return SimpleNamespace(ready=len(self.workers) if self.loaded.done() else 0)

    async def drain(self, grace: float) -> bool:
        self.drained = True
        return True

    async def close(self, grace: float) -> None:
        self.closed = True

    async def retire(self, successor: "Pool", grace: float) -> None:
        self.successor = successor
        await self.close(0)


class VersionBuilder:
    opening = builder.VersionBuilder.opening

    def __init__(self) -> None:
        self.archives: list[Archive] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.dismantled: list[str] = []
        self.built: list[Any] = []
        self.options: dict[str, Any] = {}
        self.forgotten: list[str] = []
        self.grace = 1.0

    def close(self) -> None:
        pass

    async def open(self, registration, on_progress=None, *, beside=None):
        url = registration.url or ""
        if url == "absent":
            raise ModelNotFound("Model not found at: absent")
        archive = Archive(url)
        self.archives.append(archive)
        await self.gate.wait()
        return archive

    async def build(self, name, registration, archive, *, at_startup, on_progress=None):
        if self.refusal is not None:
            raise self.refusal
        workers = registration.min_workers or registration.initial_workers or 0
        options = ModelOptions(min_workers=workers, max_workers=workers, **self.options)
        of_archive = {"archive": archive, "url": archive.url, "version": archive.manifest.model_version}
        registered = {"name": name, "registration": registration, "loaded_at_startup": at_startup}
        usual = {"replacement": None, "failure": "", "traffic": None, "histories": {}}
        usual |= {"sequence_headers": None, "pool": Pool(), "options": options}
        model = SimpleNamespace(**of_archive, **registered, **usual)
        self.built.append(model)
        return model

    async def dismantle(self, model: Any) -> None:
        self.dismantled.append(f"{model.name}-{model.version}")
        await model.pool.close(0)
        model.archive.remove()

    @property
    def metrics(self) -> Any:
        return SimpleNamespace(forget=lambda name, version: self.forgotten.append(f"{name}-{version}"))
