"""Marked requests by all protocols, from clients of which some crash, while workers are killed and models are
changed: each gets exactly one answer, its own, and the server holds as much afterwards as before (F23, F51,
F71).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from tests.campaign.callers import REQUESTS, Caller, Malformed, rows_told
from tests.campaign.targets import MIB, Holdings, port_of, quiet, settled, slope, target, tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx
    from tests.campaign.report import Report
    from tests.e2e.serving import Server

from tests.e2e.grpc_client import INFERENCE, channel, oip, predict, stub
from tests.e2e.serving import wait_until

CLIENTS = 64
GRPC_CLIENTS = 2
BATCH = 8
ANSWER_SECONDS = 60.0
# Of 100 requests that many are broken off: sent in part or whole by a client that does not wait.
BROKEN_OFF = 2
# The model ``steady`` is there all the time, with workers that are killed; ``changing`` comes and goes.
MODELS = ("steady", "changing")
# What may be answered otherwise than with the rows, and why.
CAUSES = {
    ("steady", 500): "its worker was killed",
    ("changing", 500): "its worker was killed",
    ("changing", 404): "the model was not registered",
    ("changing", 503): "the model had no workers, or was leaving",
}
CODES = {
    "INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 503
}  # fmt: skip
# The server may end larger than it was once it was warm by so much, and grow by so much in an hour.
GROWTH = 16 * MIB
SLOPE = 64 * MIB / 3600


def run(report: Report, seconds: float) -> None:
    """Half of the time against one process, half against two front ends."""
    for front_ends in (1, 2):
        what = "one process" if front_ends == 1 else f"{front_ends} front ends"
        with target(front_ends, job_queue_size=1000) as server:
            soak(report, server, what, seconds / 2)


def soak(report: Report, server: Server, what: str, seconds: float) -> None:
    """One server; what holds is told under the name ``what``."""
    for model in MODELS:
        server.registered("witness.mar", model_name=model, batch_size=BATCH, initial_workers=2)
    tally = Tally()
    asyncio_load(server, tally, min(5.0, seconds / 4))
    before = Holdings.of(server)
    readings: list[tuple[float, int]] = []
    end = time.monotonic() + seconds
    disturber = Disturber(server, end)
    with ThreadPoolExecutor(GRPC_CLIENTS + 2) as pool:
        beside = [pool.submit(call_by_grpc, server, number, end, tally) for number in range(GRPC_CLIENTS)]
        beside += [pool.submit(disturber.run), pool.submit(read_memory, server, end, readings)]
        asyncio_load(server, tally, seconds)
    for each in beside:
        each.result()
    disturber.mend()
    wait_until(lambda: quiet(server), "nothing waits or runs")
    after = settled(server, before, GROWTH / before.memory)
    tell(report, server, what, tally, disturber)
    tell_growth(report, what, before, after, readings)
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")


class Tally:
    """What came of the requests; threads share it."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.killed = 0
        self.broken_off = 0
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def right(self, kind: str) -> None:
        with self._lock:
            self.answered[kind] += 1

    def other(self, model: str, status: int, said: object) -> None:
        """An answer that is an error."""
        cause = CAUSES.get((model, status))
        with self._lock:
            if cause is None:
                self.wrong.append(f"{model} answered {status}: {str(said)[:300]}")
                return
            self.failed[cause] += 1
            self.killed += model == "steady"

    def odd(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)


def asyncio_load(server: Server, tally: Tally, seconds: float) -> None:
    """The HTTP clients, for so long."""

    async def crowd() -> None:
        end = time.monotonic() + seconds
        port = port_of(server, "inference")
        await asyncio.gather(*(call_by_http(port, client, end, tally) for client in range(CLIENTS)))

    uvloop.run(crowd())


async def call_by_http(port: int, client: int, end: float, tally: Tally) -> None:
    """One client: asks, and now and then crashes and comes back."""
    chance = random.Random(client)
    caller = await Caller.connect(port)
    number = 0
    while time.monotonic() < end:
        number += 1
        make, model = chance.choice(REQUESTS), chance.choice(MODELS)
        rows = 1 if make is REQUESTS[0] else chance.randint(1, 4)
        marks = [
            f"{client}-{end:.3f}-{number}-{row}" + "x" * chance.choice((0, 0, 3000)) for row in range(rows)
        ]
        request = make(model, marks)
        if chance.randrange(100) < BROKEN_OFF:
            tally.broken_off += 1
            caller.write(request[: chance.randint(1, len(request))])
            await asyncio.sleep(chance.choice((0.0, 0.001)))
            caller.abort()
            caller = await Caller.connect(port)
            continue
        try:
            answer = await caller.ask(request, ANSWER_SECONDS)
        except (ConnectionError, asyncio.TimeoutError, Malformed) as error:
            tally.odd(f"{make.__name__} to {model}: {error!r}")
            caller.abort()
            caller = await Caller.connect(port)
            continue
        check(tally, make.__name__, model, marks, answer.status, answer.body)
        if caller.unasked:
            tally.odd(f"bytes that nobody asked for after {make.__name__}: {caller.unasked[:100]!r}")
        if answer.closes or caller.unasked:
            caller.abort()
            caller = await Caller.connect(port)
    caller.abort()


def check(tally: Tally, kind: str, model: str, marks: list[str], status: int, body: bytes) -> None:
    """Whether the answer is the request's own."""
    if status != 200:
        tally.other(model, status, body)
        return
    try:
        told = rows_told(kind, body)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        tally.odd(f"{kind}: {error!r} in {body[:200]!r}")
        return
    if told == [f"{model}|{mark}" for mark in marks]:
        tally.right(kind)
    else:
        tally.odd(f"{kind} to {model}: asked {marks}, told {told}"[:500])


def call_by_grpc(server: Server, client: int, end: float, tally: Tally) -> None:
    """One gRPC client: TorchServe's service and the Open Inference one in turns; some calls are cancelled."""
    chance = random.Random(client)
    with channel(server, "inference") as to:
        theirs = stub(to, f"{INFERENCE}InferenceAPIsService").Predictions
        v2 = stub(to, "inference.GRPCInferenceService").ModelInfer
        number = 0
        while time.monotonic() < end:
            number += 1
            mark, model = f"grpc-{client}-{end:.3f}-{number}", chance.choice(MODELS)
            method: Any = theirs
            message = predict(model, data=mark.encode())
            if number % 2:
                contents = {"bytes_contents": [mark.encode()]}
                tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "contents": contents}
                method, message = v2, oip("ModelInferRequest", model_name=model, inputs=[tensor])
            if chance.randrange(100) < BROKEN_OFF:
                method.future(message, timeout=ANSWER_SECONDS).cancel()
                tally.broken_off += 1
                continue
            try:
                answer = method(message, timeout=ANSWER_SECONDS)
            except grpc.RpcError as error:
                tally.other(model, CODES.get(error.code().name, 0), f"{error.code()}: {error.details()}")
                continue
            told = answer.prediction if method is theirs else told_by_grpc(answer)
            if told.decode().rpartition("|")[0] == f"{model}|{mark}":
                tally.right("by_grpc" if method is theirs else "by_v2_grpc")
            else:
                tally.odd(f"gRPC to {model}: asked {mark}, told {told!r}"[:500])


def told_by_grpc(answer: Any) -> bytes:
    """The one row of a V2 answer, in either form."""
    contents: bytes = (
        answer.raw_output_contents[0][4:]
        if answer.raw_output_contents
        else answer.outputs[0].contents.bytes_contents[0]
    )
    return contents


class Disturber:
    """Kills workers, and scales, changes, replaces, versions and unregisters the model ``changing``."""

    def __init__(self, server: Server, end: float) -> None:
        self.server, self.end = server, end
        self.done: Counter[str] = Counter()
        self.killed_of_steady = 0
        self.refused: list[str] = []
        self._chance = random.Random(7)

    def run(self) -> None:
        changes: list[Callable[[], httpx.Response | None]] = [
            *(self.kill, self.kill, self.scale, self.change, self.replace, self.version, self.default),
            *(self.remove_version, self.come_and_go),
        ]
        while time.monotonic() < self.end:
            change = self._chance.choice(changes)
            answer = change()
            self.done[change.__name__] += 1
            if answer is not None and answer.status_code >= 500:
                self.refused.append(f"{change.__name__}: {answer.status_code} {answer.text[:200]}")
            time.sleep(self._chance.uniform(0.05, 0.4))

    def mend(self) -> None:
        """Both models as they were; how long that takes is bounded."""
        self.come_and_go()
        for model in MODELS:
            self.server.management.put(f"/models/{model}?min_worker=2&synchronous=true")
            self.server.wait_ready(model, 2)

    def kill(self) -> None:
        """Of either model; the steady one is killed as often as its workers come back."""
        model = self._chance.choice(MODELS)
        answer = self.server.management.get(f"/models/{model}")
        if answer.status_code != 200:
            return
        ready = [worker["pid"] for worker in answer.json()[0]["workers"] if worker["status"] == "READY"]
        if ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(ready), signal.SIGKILL)
                self.killed_of_steady += model == "steady"

    def scale(self) -> httpx.Response:
        return self._put(f"?min_worker={self._chance.randint(1, 3)}&synchronous=true")

    def change(self) -> httpx.Response:
        return self._put(f"?batch_size={self._chance.choice((1, 4, 16))}&max_batch_delay=5")

    def replace(self) -> httpx.Response:
        return self._put(f"?url={self._chance.choice(('witness.mar', 'witness-v2.mar'))}&synchronous=true")

    def version(self) -> httpx.Response:
        return self.server.register("witness-v2.mar", model_name="changing")

    def default(self) -> httpx.Response:
        return self._put(f"/{self._chance.choice(('1.0', '2.0'))}/set-default")

    def remove_version(self) -> httpx.Response:
        return self.server.management.delete(f"/models/changing/{self._chance.choice(('1.0', '2.0'))}")

    def come_and_go(self) -> httpx.Response:
        self.server.management.delete("/models/changing/2.0")
        self.server.management.delete("/models/changing/1.0")
        self.server.management.delete("/models/changing")
        return self.server.register("witness.mar", model_name="changing", batch_size=BATCH, initial_workers=2)

    def _put(self, rest: str) -> httpx.Response:
        return self.server.management.put(f"/models/changing{rest}")


def read_memory(server: Server, end: float, readings: list[tuple[float, int]]) -> None:
    """A reading a second."""
    while time.monotonic() < end:
        readings.append((time.monotonic(), Holdings.of(server).memory))
        time.sleep(1)


def tell(report: Report, server: Server, what: str, tally: Tally, disturber: Disturber) -> None:
    """Figures, and what did not hold."""
    answered, failed = sum(tally.answered.values()), sum(tally.failed.values())
    report.figure(f"{what}: requests answered with their own", answered)
    for kind, count in sorted(tally.answered.items()):
        report.figure(f"{what}:   {kind}", count)
    for cause, count in sorted(tally.failed.items()):
        report.figure(f"{what}: an error because {cause}", count)
    report.figure(f"{what}: broken off by their clients", tally.broken_off)
    report.figure(f"{what}: changes", ", ".join(f"{n} {name}" for name, n in sorted(disturber.done.items())))
    report.figure(f"{what}: wrong, missing or unexplained answers", len(tally.wrong))
    report.failures += [f"{what}: {wrong}" for wrong in tally.wrong]
    report.failures += [f"{what}: {refused}" for refused in disturber.refused]
    report.hold(answered > failed, f"{what}: only {answered} requests were answered, {failed} failed")
    lost = tally.killed
    report.hold(
        lost <= BATCH * disturber.killed_of_steady,
        f"{what}: {lost} requests failed by {disturber.killed_of_steady} kills, batches of {BATCH}",
    )
    wait_until(lambda: server.inference.get("/livez").status_code == 200, "the server lives")
    report.hold(
        server.predict("steady", b"last").text.startswith("steady|last|"), f"{what}: no longer serves"
    )


def tell_growth(
    report: Report, what: str, before: Holdings, after: Holdings, readings: list[tuple[float, int]]
) -> None:
    """Memory, descriptors and threads."""
    # The first third is the caches' to fill.
    grows = slope(readings[len(readings) // 3 :])
    report.figure(f"{what}: resident memory", f"{before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB")
    report.figure(f"{what}: slope", f"{grows * 3600 / MIB:+.1f} MiB an hour")
    report.figure(f"{what}: descriptors", f"{before.descriptors} -> {after.descriptors}")
    report.figure(f"{what}: threads", f"{before.threads} -> {after.threads}")
    held = after.memory - before.memory
    report.hold(held <= GROWTH, f"{what}: resident memory grew by {held / MIB:.0f} MiB")
    if len(readings) >= 300:
        report.hold(grows <= SLOPE, f"{what}: resident memory grows by {grows * 3600 / MIB:.0f} MiB an hour")
    report.hold(
        after.descriptors <= before.descriptors + 6, f"{what}: descriptors grew to {after.descriptors}"
    )
    report.hold(after.threads <= before.threads + 6, f"{what}: threads grew to {after.threads}")
