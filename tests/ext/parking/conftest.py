"""Models whose workers are played by the test, with a keeper whose clock the test moves."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.engine.pools import pools
from tests.engine.pools.conftest import Counts, PlayedProcess, Stage, stage, times  # noqa: F401 - fixtures

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.devices import DeviceList
from modelserver.engine.pools.gate import BASE_NEED, COPIES, StartGate
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import WorkerSpec, WorkerTimes
from modelserver.engine.telemetry.gpus import GpuMemory
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import Load
from modelserver.ext.parking.budgets import BASE, Budgets
from modelserver.ext.parking.history import History
from modelserver.ext.parking.keeper import LOOKS, Keeper
from modelserver.ext.parking.meters import ParkingMeters
from modelserver.ext.parking.needs import Needs
from modelserver.ext.parking.resident import Resident

MIB = 1 << 20
OPTIONS = {"load": "on-demand", "idle_timeout": 300, "pin": False, "prewarm": False}


class Floor:
    """A keeper, its models by name, and the machine's memory and time."""

    def __init__(self, stage: Stage, times: WorkerTimes, folder: Path) -> None:  # noqa: F811
        self.now = 1000.0
        self.sizes: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        self.stage = stage
        self.gpus: dict[int, GpuMemory] = {}
        gpus = SimpleNamespace(memory=self.gpus.get, renew=self.renew)
        self.budgets = Budgets(1000 * MIB, 0, Needs(folder), gpus)
        self.pools: dict[str, Pool] = {}
        self.metrics = ServerMetrics(hostname="h")
        self.meters = ParkingMeters(self.metrics)
        self.keeper = Keeper(
            self.budgets, History(folder), self.meters, measure=self.measure, clock=lambda: self.now
        )
        self.times = times
        self.gate = StartGate(available=lambda: math.inf)

    async def renew(self) -> None:
        """What ``gpus`` says is the last reading."""

    def measure(self, pids: Iterable[int]) -> tuple[list[int], int]:
        family = [one for pid in pids for one in (pid, *self.children.get(pid, ()))]
        return family, sum(self.sizes.get(pid, 0) for pid in family)

    def add(self, name: str, mib: int = 100, workers: tuple[int, int] = (0, 1), **options) -> Resident:
        """A model whose files have so many MiB less than what a worker needs beside them.

        ``gpus`` are those that its workers get in turn, and ``launcher`` starts them. ``tickets`` and
        ``affinity`` are those of its pool.
        """
        gpus = options.pop("gpus", ())
        spec = WorkerSpec(
            load=Load(name, "1.0", "/nowhere", "handler.py", 4),
            threads=1,
            frame_limit=1 << 20,
            need=BASE_NEED + COPIES * (mib * MIB - BASE),
            gate=self.gate,
            launcher=options.pop("launcher", None),
        )
        ids = iter(range(9000, 9100))
        pool = Pool(
            name,
            f"{name}_1.0",
            spec,
            self.times,
            replace(pools.LIMITS, tickets=options.pop("tickets", False)),
            next_id=ids.__next__,
            devices=DeviceList(gpus),
            metrics=Counts(),  # type: ignore[arg-type]
            affinity=options.pop("affinity", None),
            clock=lambda: self.now,
        )
        self.pools[name] = pool
        values = {**OPTIONS, **options}
        startup = values.pop("startup_timeout", 60)
        model = SimpleNamespace(
            name=name,
            version="1.0",
            pool=pool,
            metrics=self.metrics.model(name, "1.0"),
            options=SimpleNamespace(values=values, startup_timeout=startup),
            histories={},
        )
        self.keeper.keep(model)
        pool.scale(*workers)
        return self.keeper.residents[-1]

    def ask(self, name: str, body: bytes = b"x") -> Request:
        """A request, which waits; its model is added if there is none of the name."""
        if name not in self.pools:
            self.add(name)
        request = pools.request(body)
        request.arrived = self.now
        self.pools[name].submit(request)
        return request

    async def load(self, number: int, mib: int = 100, seconds: float = 0.0) -> PlayedProcess:
        """Process ``number`` of all loads its model in so many seconds, and then has so many MiB."""
        await self.settle()
        process = await self.stage.enter(number)
        self.sizes[process.pid] = mib * MIB
        process.load(seconds=seconds)
        await self.settle()
        return process

    async def answer(self, process: PlayedProcess) -> None:
        """The process answers what it has."""
        await self.settle()
        process.answer()
        await self.settle()

    async def use(self, number: int, name: str, requests: int = 1, mib: int = 100) -> PlayedProcess:
        """So many requests come, one after the other; process ``number`` of all loads and answers them."""
        self.ask(name)
        process = await self.load(number, mib)
        await self.answer(process)
        for _ in range(requests - 1):
            self.ask(name)
            await self.answer(process)
        return process

    async def settle(self, seconds: float = 0.0) -> None:
        """So many seconds pass; the keeper does everything there is to do in the first and after the last."""
        if seconds > LOOKS:
            await self.settle(LOOKS)
            seconds -= LOOKS
        self.now += seconds
        for _ in range(3):
            await self.budgets.read_gpus(always=False)
            self.keeper.look()
            self.keeper.place()
            await self.keeper.measure()
            await self.stage.settle()

    def states(self) -> dict[str, str]:
        return {each.model.name: each.state for each in self.keeper.residents}

    async def close(self) -> None:
        for pool in self.pools.values():
            await pool.close(0.01)


@pytest.fixture
async def floor(stage, times, tmp_path):  # noqa: F811
    made = Floor(stage, times, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def resident(floor):
    return floor.add("a")
