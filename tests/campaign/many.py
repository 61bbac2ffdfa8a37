"""Marked requests to hundreds of models that are loaded on demand, with memory for some of them, while
workers are killed, archives replaced, budgets changed, and models parked and unregistered in the middle of
loads: each gets exactly one answer, its own or an error that a change explains, and the server holds as much
afterwards as before.

Half of the time with memory for few models, half with memory for more and with two front ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
from tests.campaign.crowd import Tally, ask_by_grpc, ask_by_http
from tests.campaign.disturbing import Change, Disturbance
from tests.campaign.report import Report
from tests.campaign.soak import read_memory, tell_growth
from tests.campaign.targets import MIB, Holdings, quiet, settled, target, tracebacks
from tests.e2e.serving import Server, wait_until, worker_processes

from modelserver.ext.parking.memory import footprint

MODELS, CLIENTS, GRPC_CLIENTS = 300, 12, 1
PAUSE = 0.05
BUDGETS = (300 * MIB, 1200 * MIB)
# What a model has at most, before it has been measured.
LARGEST = 80 * MIB
CAUSES = {
    500: "its worker was killed",
    404: "the model was not registered",
    503: "the model was leaving, or could not be loaded",
}
# Seconds after a change of a model in which it explains errors.
RECENT = 10.0
SLOWEST = 30.0
# More bytes of memory after the last two thirds of the time; the first is the caches' to fill.
_GROWTH = 10 * MIB


def run(report: Report, seconds: float) -> None:
    """Half of the time with either budget; a short run has the small one."""
    count = 30 if seconds < 60 else MODELS
    budgets = BUDGETS[:1] if seconds < 60 else BUDGETS
    for front_ends, budget in enumerate(budgets, 1):
        settings = {"load": "on-demand", "max_models_memory": budget, "idle_timeout": 20}
        with target(front_ends, job_queue_size=1000, **settings) as server:
            names = [f"m{number}" for number in range(count)]
            for name in names:
                register(server, name)
            disturb(report, server, f"{budget // MIB} MiB", names, seconds / len(budgets))


def files_of(server: Server) -> int:
    """The files that it keeps, without what Python compiles when a model is loaded for the first time."""
    return sum("__pycache__" not in path.parts for path in server.home.temp.rglob("*"))


def register(server: Server, name: str) -> httpx.Response:
    return server.management.post("/models", params={"url": "witness.mar", "model_name": name})


def restore(server: Server, name: str) -> None:
    """As at the beginning: replacements have left other versions."""
    wait_until(lambda: server.management.delete(f"/models/{name}").status_code == 404, f"{name} is gone")
    register(server, name)


def load_all(server: Server, names: list[str]) -> set[int]:
    """The statuses of a request for each model."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        return set(pool.map(lambda name: server.predict(name, b"first").status_code, names))


def disturb(report: Report, server: Server, what: str, names: list[str], seconds: float) -> None:
    """Disturbs one server; the report has the results under the name ``what``."""
    disturber = Disturber(server, names)
    tally = RecentTally(names, disturber.changed)
    # Some are popular.
    tally.models = [name for number, name in enumerate(names) for _ in range(max(1, 60 // (number + 1)))]
    # What is kept of both versions, from their first load on and after they are gone, is no growth.
    first = load_all(server, names)
    for name in names:
        server.management.put(f"/models/{name}", params={"url": "witness-v2.mar", "synchronous": "true"})
    first |= load_all(server, names)
    for name in names:
        restore(server, name)
    first |= load_all(server, names)
    report.hold(first == {200}, f"{what}: first requests were answered with {sorted(first)}")
    warm = time.monotonic() + min(20.0, seconds / 4)
    ask_by_http(server, tally, CLIENTS, lambda: time.monotonic() < warm, PAUSE)
    before, end = Holdings.of(server), time.monotonic() + seconds
    files = files_of(server)
    readings: list[tuple[float, int]] = []
    disturber.end = end

    def going() -> bool:
        return time.monotonic() < end

    with ThreadPoolExecutor(GRPC_CLIENTS + 3) as pool:
        beside = [pool.submit(ask_by_grpc, server, tally, n, going, PAUSE) for n in range(GRPC_CLIENTS)]
        beside += [pool.submit(disturber.run), pool.submit(read_memory, server, end, readings)]
        beside.append(pool.submit(disturber.watch))
        ask_by_http(server, tally, CLIENTS, going, PAUSE)
    for each in beside:
        each.result()
    before = replace(before, memory=readings[len(readings) // 3][1])
    wait_until(lambda: quiet(server), "nothing waits or runs")
    for name in names:
        restore(server, name)
    parks = server.management.get("/parking").json()["models"]
    wait_until(lambda: not park_all(server), "all models are parked", 60.0)
    wait_until(lambda: not worker_processes(server.pid), "no worker is left", 60.0)
    after = settled(server, before, _GROWTH / before.memory)
    tell(report, server, what, tally, disturber)
    tell_growth(report, what, before, after, readings, _GROWTH)
    left = files_of(server)
    report.figure(f"{what}: files", f"{files} -> {left}")
    report.hold(left <= files + 20, f"{what}: files grew from {files} to {left}")
    report.hold(set(parks) <= {"loaded", "parked", "failed"}, f"{what}: {sorted(parks)} when all was quiet")
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")
    report.hold(server.predict(names[0], b"last").text.startswith(names[0]), f"{what}: no longer serves")


def tell(report: Report, server: Server, what: str, tally: Tally, disturber: Disturber) -> None:
    """Figures, and what did not hold."""
    answered, failed = tally.answered.total(), tally.failed.total()
    report.figure(f"{what}: requests answered with their own", answered)
    for status, cause in CAUSES.items():
        count = sum(n for (_, each), n in tally.failed.items() if each == status)
        report.figure(f"{what}: an error because {cause}", count)
    report.figure(f"{what}: wrong, missing or unexplained answers", len(tally.wrong))
    report.figure(f"{what}: slowest answer", f"{tally.slowest:.1f} s")
    report.figure(f"{what}: changes", ", ".join(f"{n} {name}" for name, n in sorted(disturber.done.items())))
    for name in ("loads", "parks"):
        pattern = f"modelserver_{name}_total"
        report.figure(f"{what}: {name}", f"{server.metric(pattern) or 0:.0f}")
    report.hold(disturber.readings > 0, f"{what}: the memory of processes was not read")
    budget = disturber.budget
    for whose, most in (("as counted", disturber.most), ("of processes", disturber.most_of_processes)):
        figure = f"{most / MIB:.0f} MiB of {budget / MIB:.0f}"
        report.figure(f"{what}: memory of models {whose}, at most", figure)
        report.hold(most <= budget + LARGEST, f"{what}: models had {figure} {whose}")
    report.failures += [f"{what}: {wrong}" for wrong in (*tally.wrong, *disturber.refused)]
    report.hold(answered > 5 * failed, f"{what}: only {answered} requests were answered, {failed} failed")
    report.hold(tally.slowest < SLOWEST, f"{what}: a request took {tally.slowest:.1f} s")


def park_all(server: Server) -> list[str]:
    loaded: list[str] = server.management.get("/parking").json()["models"].get("loaded", [])
    for each in loaded:
        server.management.post(f"/models/{each.partition(' ')[0]}", params={"action": "park"})
    return loaded


class RecentTally(Tally):
    """An error is explained by a change of its model a moment ago; ``changed`` has the time of its end."""

    def __init__(self, names: list[str], changed: Mapping[str, float]) -> None:
        super().__init__({(name, status): cause for name in names for status, cause in CAUSES.items()})
        self._changed = changed

    def explains(self, model: str, status: int) -> bool:
        is_recent = time.monotonic() < self._changed.get(model, -math.inf) + RECENT
        return is_recent and super().explains(model, status)


class Disturber(Disturbance):
    """Kills workers; replaces, parks, loads and unregisters models, some of them while they load.

    ``changed``: when models were changed last, infinity while one is.
    """

    def __init__(self, server: Server, names: list[str]) -> None:
        super().__init__(server, 0.0)
        self.budget: int = server.management.get("/parking").json()["budget"]
        self.most = self.most_of_processes = self.readings = 0
        self.changed: dict[str, float] = {}
        self._names = names
        self._pool = ThreadPoolExecutor(4)

    def changes(self) -> Sequence[Change]:
        whole = self.replace, self.park, self.load, self.come_and_go
        while_loading = self.unregister_loading, self.replace_loading
        return [self.kill, self.kill, *whole, *while_loading, self.change_budget]

    def run(self) -> None:
        super().run()
        self._pool.shutdown()

    def watch(self) -> None:
        """Reads what models have, by the server and by their processes."""
        while time.monotonic() < self.end:
            parking = self.server.management.get("/parking").json()
            self.most = max(self.most, parking["used"])
            workers = worker_processes(self.server.pid)
            _, size = footprint(each.pid for each in workers)
            # One that ended, and another that began in its place, were not there together.
            if worker_processes(self.server.pid) == workers:
                self.most_of_processes = max(self.most_of_processes, size)
                self.readings += 1
            time.sleep(0.5)

    def kill(self) -> None:
        """A worker of a model that is loaded or loading."""
        states = self.server.management.get("/parking").json()["models"]
        living = [each.partition(" ")[0] for each in (*states.get("loaded", ()), *states.get("loading", ()))]
        if not living:
            return
        with self._one(living) as name:
            described = self.server.management.get(f"/models/{name}")
            pids = {each["pid"] for each in described.json()[0]["workers"]} if described.is_success else ()
            for each in worker_processes(self.server.pid):
                if each.pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)

    def change_budget(self) -> httpx.Response:
        """Sets it to between half and all of what the server began with."""
        size = int(self.budget * self.chance.uniform(0.5, 1.0))
        return self.server.management.put("/parking", params={"max_models_memory": size})

    def replace(self) -> httpx.Response:
        with self._one() as name:
            return self._replace(name)

    def park(self) -> httpx.Response:
        with self._one() as name:
            return self._act(name, "park")

    def load(self) -> None:
        """Its answer may be that the worker was killed meanwhile."""
        with self._one() as name:
            self._act(name, "load")

    def come_and_go(self) -> httpx.Response:
        with self._one() as name:
            return self._come_and_go(name)

    def unregister_loading(self) -> httpx.Response:
        with self._one() as name:
            self._load_soon(name)
            return self._come_and_go(name)

    def replace_loading(self) -> httpx.Response:
        with self._one() as name:
            self._load_soon(name)
            return self._replace(name)

    def _load_soon(self, name: str) -> None:
        """Begins to load it, and leaves it some time for that."""
        self._pool.submit(self._act, name, "load")
        time.sleep(self.chance.uniform(0.0, 0.3))

    def _come_and_go(self, name: str) -> httpx.Response:
        self.server.management.delete(f"/models/{name}")
        return register(self.server, name)

    def _replace(self, name: str) -> httpx.Response:
        url = self.chance.choice(("witness.mar", "witness-v2.mar"))
        return self.server.management.put(f"/models/{name}", params={"url": url, "synchronous": "true"})

    def _act(self, name: str, action: str) -> httpx.Response:
        return self.server.management.post(f"/models/{name}", params={"action": action})

    @contextlib.contextmanager
    def _one(self, names: Sequence[str] = ()) -> Iterator[str]:
        """A model that is changed while the block runs: one of these, else of all, often a popular one."""
        names = names or (self._names[:40] if self.chance.random() < 0.5 else self._names)
        name = self.chance.choice(names)
        self.changed[name] = math.inf
        try:
            yield name
        finally:
            self.changed[name] = time.monotonic()
