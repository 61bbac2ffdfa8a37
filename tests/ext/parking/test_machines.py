"""Models on demand on a cluster that is played: its machines have so much memory, and workers reserve it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.cycles import no_cycles
from tests.engine.pools.conftest import PlayedProcess
from tests.ext.parking.test_prewarming import add_daily

from modelserver.engine.demand import Demand
from modelserver.engine.pools.spec import Node
from modelserver.errors import DeadlineExceeded, ServiceUnavailable
from modelserver.ext.parking.machines import SETTLES
from modelserver.ext.parking.room import MIN_RESIDENCE

MIB = 1 << 20


class RemoteProcess(PlayedProcess):
    pids: list[int] = []  # noqa: RUF012


@dataclass
class Machines:
    """Each machine's free memory, as the cluster shows it."""

    stage: Any
    free: dict[str, float]
    refusal: OSError | None = None
    processes: list[PlayedProcess] = field(default_factory=list)

    async def place(self, launcher, arguments):
        """Reports that there is no room until there is."""
        need = launcher.guest.reserve()
        while not (fitting := [node for node, free in self.free.items() if free >= need]):
            if self.refusal is not None:
                launcher.guest.unplaced()
                raise self.refusal
            lacks = {node: {"memory": need - free} for node, free in self.free.items()}
            launcher.guest.make_room(lacks)
            await asyncio.sleep(0)
        node = max(fitting, key=self.free.__getitem__)
        self.free[node] -= need
        spec, _, (receiver,) = arguments
        process = RemoteProcess(1000 + len(self.processes), receiver.on_message, receiver.on_lost)
        process.node = Node(node)
        process.send(spec.load)
        process._end.add_done_callback(lambda _: self.give_back(node, need))
        self.processes.append(process)
        return process

    def give_back(self, node, need):
        self.free[node] += need


@dataclass(frozen=True)
class Launcher:
    machines: Machines
    demand: Demand = field(default_factory=Demand)
    guest: Any = None

    def sharing(self, guest):
        return replace(self, guest=guest)

    async def __call__(self, *arguments):
        return [await self.machines.place(self, arguments)]


class Site:
    """Models on those machines."""

    def __init__(self, floor, **free):
        self.floor = floor
        self.machines = Machines(floor.stage, {name: mib * MIB for name, mib in free.items()})

    def add(self, name, mib=100, demand=Demand(), **options):  # noqa: B008 - it never changes
        self.floor.add(name, mib, launcher=Launcher(self.machines, demand), **options)

    async def use(self, name, requests=1, mib=100):
        """So many requests come, one after the other, for a model that may be new; returns its machine."""
        if name not in self.floor.pools:
            self.add(name)
        count = len(self.machines.processes)
        self.floor.ask(name)
        await self.floor.settle()
        process = self.machines.processes[count]
        process.load(seconds=1.0)
        await self.floor.answer(process)
        process.node.of_family, process.node.reports = mib * MIB, process.node.reports + 1
        for _ in range(requests - 1):
            self.floor.ask(name)
            await self.floor.answer(process)
        return process.node.name


async def test_models_of_a_machine_make_room(floor):
    """Those that are worth least, on the machine where that costs least."""
    site = Site(floor, n1=300, n2=200)
    where = {}
    for name, requests in {"a": 5, "b": 2, "c": 1, "d": 3, "e": 4}.items():
        where[name] = await site.use(name, requests)
    assert where == {"a": "n1", "b": "n1", "c": "n2", "d": "n1", "e": "n2"}
    site.add("f", 200)
    await floor.settle(MIN_RESIDENCE)

    assert await site.use("f", mib=200) in ("n1", "n2")
    # b and d are worth 5, c and e as much; n1 comes first.
    assert [name for name, state in floor.states().items() if state == "parked"] == ["b", "d"]


async def test_unregistered_model_leaves_nothing(floor):
    """A reference cycle would keep its pool, metrics and arrivals until the next collection."""
    with no_cycles():
        Site(floor, n1=300).add("a")
        await floor.pools.pop("a").close(0.0)
        await floor.settle()


async def test_load_waits_until_models_may_be_parked(floor):
    """It neither fails nor parks what is young or busy; who cannot wait so long learns what is lacking."""
    site = Site(floor, n1=100)
    await site.use("a")
    site.add("b")
    floor.ask("b")
    await floor.settle(MIN_RESIDENCE - 1)
    assert floor.states() == {"a": "loaded", "b": "loading"}
    b = floor.keeper.residents[1]
    with pytest.raises(ServiceUnavailable, match="node n1 lacks 100 MiB of memory, and no other"):
        await b.load(seconds=0.0)
    await floor.settle(1)
    assert floor.states() == {"a": "parked", "b": "loading"}
    await floor.settle(SETTLES)

    assert len(site.machines.processes) == 2
    with pytest.raises(DeadlineExceeded):
        await b.load(seconds=0.0)


@pytest.mark.parametrize(
    ("requests", "has_request", "state"), [(1, False, "loaded"), (500, False, "parked"), (1, True, "parked")]
)
async def test_load_ahead_of_time_parks_what_is_worth_less(floor, requests, has_request, state):
    """Until there is a request."""
    site = Site(floor, n1=150)
    await site.use("used", 6)
    await floor.settle(MIN_RESIDENCE)
    add_daily(floor, "a", 60, requests, launcher=Launcher(site.machines))
    await floor.settle(200)
    if has_request:
        floor.ask("a")
        await floor.settle(1)

    assert floor.states() == {"used": state, "a": "loading"}


@pytest.mark.parametrize(("has_request", "state"), [(False, "parked"), (True, "loading")])
async def test_load_ahead_of_time_without_a_place_is_a_miss(floor, has_request, state):
    """The model has not failed: it is loaded for a request, also for one that has come by then."""
    site = Site(floor, n1=50)
    resident = add_daily(floor, "a", 60, launcher=Launcher(site.machines))
    await floor.settle()
    assert floor.states() == {"a": "loading"}
    site.machines.refusal = OSError("no machine was found within 60 s")
    request = floor.ask("a") if has_request else None
    await floor.stage.settle()
    site.machines.refusal = None
    await floor.settle()
    assert floor.states() == {"a": state}
    assert resident.describe()["failedLoads"] is None
    request = request or floor.ask("a")
    site.machines.free["n1"] = 100 * MIB
    await floor.settle()
    site.machines.processes[0].load()
    await floor.answer(site.machines.processes[0])

    assert request.failure() is None
    assert resident.describe()["prewarms"] == {"hit" if has_request else "miss": 1}


async def test_memory_of_resources_is_what_a_model_frees(floor):
    """However much it needs."""
    site = Site(floor, n1=100)
    for name in ("a", "b"):
        site.add(name, 30, Demand(memory=60 * MIB))
    await site.use("a", mib=30)
    await floor.settle(MIN_RESIDENCE)
    await site.use("b", mib=30)

    assert floor.states() == {"a": "parked", "b": "loaded"}


async def test_load_without_a_place_fails_with_the_reason(floor):
    """That the cluster says: others that do not help are not parked."""
    site = Site(floor, n1=150)
    await site.use("a")
    site.add("b", 200)
    request = floor.ask("b")
    await floor.settle(MIN_RESIDENCE)
    site.machines.refusal = OSError("no machine was found within 60 s")
    await floor.settle()

    assert isinstance(request.failure(), ServiceUnavailable)
    assert "no machine was found" in str(request.failure())
    assert floor.states() == {"a": "loaded", "b": "failed"}


async def test_memory_elsewhere_is_learned(floor):
    """From the first report that comes after the load; the next worker reserves as much."""
    site = Site(floor, n1=1000)
    site.add("a")
    floor.ask("a")
    await floor.settle()
    process, resident = site.machines.processes[0], floor.keeper.residents[0]
    process.node.of_family, process.node.reports = 3 * MIB, 1
    process.load()
    await floor.answer(process)
    assert (resident.memory, site.machines.free["n1"]) == (0, 900 * MIB)
    process.node.of_family, process.node.reports = 300 * MIB, 2
    await floor.settle()
    assert resident.memory == 300 * MIB
    resident.park()
    await floor.settle()
    await site.use("a", mib=300)

    assert site.machines.free["n1"] == 700 * MIB
