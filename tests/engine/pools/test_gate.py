import asyncio
import compileall
import math

import pytest
from tests.engine.pools.conftest import settle

from modelserver.engine.pools.gate import BASE_NEED, COPIES, StartGate, need_of


class Loads:
    """Loads that go on until the test ends them."""

    def __init__(self, gate):
        self._gate = gate
        self._ends = {}
        self.running = []
        self.tasks = {}

    async def begin(self, name, need=1, worth=math.inf):
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._load(name, need, worth))
        await settle()

    async def _load(self, name, need, worth):
        async with self._gate.place(need, worth):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name):
        self._ends[name].set()
        await settle()


async def test_limit_holds_for_simultaneous_loads():
    """At most ``limit`` load at once; the next in line follows when one is done (F57)."""
    loads = Loads(StartGate(2, lambda: float("inf")))
    for name in "abcd":
        await loads.begin(name)

    assert loads.running == ["a", "b"]
    await loads.end("a")
    assert loads.running == ["b", "c"]


async def test_what_is_worth_most_loads_first():
    """Also if others leave meanwhile; equal ones are in their order."""
    loads = Loads(StartGate(1, lambda: float("inf")))
    worths = {"first": 0.0, "low": 1.0, "leaves": 9.0, "high": 5.0, "equal": 5.0, "at-start": math.inf}
    for name, worth in worths.items():
        await loads.begin(name, worth=worth)
    loads.tasks["leaves"].cancel()
    order = []
    while loads.running:
        order += loads.running
        await loads.end(order[-1])

    assert order == ["first", "at-start", "high", "equal", "low"]


async def test_worker_waits_for_memory_unless_it_is_alone():
    loads = Loads(StartGate(8, lambda: 100))
    await loads.begin("a", need=60)
    await loads.begin("b", need=60)
    await loads.begin("c", need=10)

    assert loads.running == ["a"]
    await loads.end("a")
    assert loads.running == ["b", "c"]

    loads = Loads(StartGate(8, lambda: 0.0))
    await loads.begin("a", need=60)
    await loads.begin("b", need=1)

    assert loads.running == ["a"]


async def test_worker_that_is_stopped_makes_way():
    loads = Loads(StartGate(1, lambda: float("inf")))
    for name in "abc":
        await loads.begin(name)
    for name in "ba":
        loads.tasks[name].cancel()
        await settle()

    assert loads.running == ["c"]


async def test_failed_load_frees_its_place():
    gate = StartGate(1, lambda: float("inf"))
    with pytest.raises(OSError, match="no"):
        async with gate.place(1):
            raise OSError("no")

    loads = Loads(gate)
    await loads.begin("a")
    assert loads.running == ["a"]


def test_need_is_computed_from_files(tmp_path):
    """A model needs its files twice, beside what every worker needs."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "weights.pth").write_bytes(b"x" * 1000)
    (tmp_path / "sub" / "more").write_bytes(b"x" * 24)

    assert need_of(tmp_path) == BASE_NEED + COPIES * 1024


def test_what_workers_compile_beside_a_handler_is_not_counted(tmp_path):
    """Or a model's folder would have another size at the second start, and its learned needs be forgotten."""
    (tmp_path / "handler.py").write_text("x = 1")
    before = need_of(tmp_path)
    compileall.compile_dir(tmp_path, quiet=1)

    assert list(tmp_path.glob("__pycache__/*"))
    assert need_of(tmp_path) == before


async def test_one_leaves_as_its_turn_comes():
    gate = StartGate(limit=1, available=lambda: 100.0)

    async def load():
        async with gate.place(10):
            pass

    async with gate.place(10):
        waiting = asyncio.create_task(load())
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert gate.free() == 100.0
    await asyncio.wait_for(load(), 1.0)
