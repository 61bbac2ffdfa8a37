"""Marked requests by all protocols, from clients of which some crash, while workers are killed and models are
changed: each gets exactly one answer, its own, and the server holds as much afterwards as before (F23, F51,
F71).
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from tests.campaign.crowd import Tally, ask_by_grpc, ask_by_http
from tests.campaign.disturbing import Change, Disturbance
from tests.campaign.report import Report
from tests.campaign.targets import MIB, Holdings, quiet, settled, slope, target, tracebacks
from tests.e2e.serving import Server, wait_until

CLIENTS = 64
# Clients of shorter runs wait between requests: what happens to the server does not depend on their number.
SHORT_SECONDS, SHORT_PAUSE = 60.0, 0.05
GRPC_CLIENTS = 2
BATCH = 8
# The model ``steady`` is there all the time, with workers that are killed; ``changing`` comes and goes.
MODELS = ("steady", "changing")
# Responses that may have no rows, with the reasons.
CAUSES = {
    ("steady", 500): "its worker was killed",
    ("changing", 500): "its worker was killed",
    ("changing", 404): "the model was not registered",
    ("changing", 503): "the model had no workers, or was leaving",
}
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
    """Loads one server; the report has the results under the name ``what``."""
    for model in MODELS:
        server.registered("witness.mar", model_name=model, batch_size=BATCH, initial_workers=2)
    tally = Tally(CAUSES)
    pause = SHORT_PAUSE if seconds < SHORT_SECONDS else 0.0
    warm = time.monotonic() + min(5.0, seconds / 4)
    ask_by_http(server, tally, CLIENTS, lambda: time.monotonic() < warm, pause)
    before = Holdings.of(server)
    readings: list[tuple[float, int]] = []
    end = time.monotonic() + seconds
    disturber = Disturber(server, end)

    def going() -> bool:
        return time.monotonic() < end

    with ThreadPoolExecutor(GRPC_CLIENTS + 2) as pool:
        beside = [pool.submit(ask_by_grpc, server, tally, n, going, pause) for n in range(GRPC_CLIENTS)]
        beside += [pool.submit(disturber.run), pool.submit(read_memory, server, end, readings)]
        ask_by_http(server, tally, CLIENTS, going, pause)
    for each in beside:
        each.result()
    disturber.mend()
    wait_until(lambda: quiet(server), "nothing waits or runs")
    after = settled(server, before, GROWTH / before.memory)
    tell(report, server, what, tally, disturber)
    tell_growth(report, what, before, after, readings)
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")


class Disturber(Disturbance):
    """Kills workers, and scales, changes, replaces, versions and unregisters the model ``changing``."""

    def __init__(self, server: Server, end: float) -> None:
        super().__init__(server, end)
        self.killed_of_steady = 0

    def changes(self) -> Sequence[Change]:
        of_versions = self.version, self.default, self.remove_version
        return [self.kill, self.kill, self.scale, self.change, self.replace, self.come_and_go, *of_versions]

    def mend(self) -> None:
        """Both models as they were; how long that takes is bounded."""
        self.come_and_go()
        for model in MODELS:
            self.server.management.put(f"/models/{model}?min_worker=2&synchronous=true")
            self.server.wait_ready(model, 2)

    def kill(self) -> None:
        """Kills workers of either model; the steady one is killed as often as its workers come back."""
        model = self.chance.choice(MODELS)
        answer = self.server.management.get(f"/models/{model}")
        if answer.status_code != 200:
            return
        ready = [worker["pid"] for worker in answer.json()[0]["workers"] if worker["status"] == "READY"]
        if ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(ready), signal.SIGKILL)
                self.killed_of_steady += model == "steady"

    def scale(self) -> httpx.Response:
        return self._put(f"?min_worker={self.chance.randint(1, 3)}&synchronous=true")

    def change(self) -> httpx.Response:
        return self._put(f"?batch_size={self.chance.choice((1, 4, 16))}&max_batch_delay=5")

    def replace(self) -> httpx.Response:
        return self._put(f"?url={self.chance.choice(('witness.mar', 'witness-v2.mar'))}&synchronous=true")

    def version(self) -> httpx.Response:
        return self.server.register("witness-v2.mar", model_name="changing")

    def default(self) -> httpx.Response:
        return self._put(f"/{self.chance.choice(('1.0', '2.0'))}/set-default")

    def remove_version(self) -> httpx.Response:
        return self.server.management.delete(f"/models/changing/{self.chance.choice(('1.0', '2.0'))}")

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
    answered, failed = tally.answered.total(), tally.failed.total()
    report.figure(f"{what}: requests answered with their own", answered)
    for kind, count in sorted(tally.answered.items()):
        report.figure(f"{what}:   {kind}", count)
    for cause in sorted(set(CAUSES.values())):
        count = sum(count for error, count in tally.failed.items() if CAUSES[error] == cause)
        report.figure(f"{what}: an error because {cause}", count)
    report.figure(f"{what}: broken off by their clients", tally.broken_off)
    report.figure(f"{what}: changes", ", ".join(f"{n} {name}" for name, n in sorted(disturber.done.items())))
    report.figure(f"{what}: wrong, missing or unexplained answers", len(tally.wrong))
    report.failures += [f"{what}: {wrong}" for wrong in tally.wrong]
    report.failures += [f"{what}: {refused}" for refused in disturber.refused]
    report.hold(answered > failed, f"{what}: only {answered} requests were answered, {failed} failed")
    lost = tally.failed["steady", 500]
    report.hold(
        lost <= BATCH * disturber.killed_of_steady,
        f"{what}: {lost} requests failed by {disturber.killed_of_steady} kills, batches of {BATCH}",
    )
    wait_until(lambda: server.inference.get("/livez").status_code == 200, "the server lives")
    report.hold(
        server.predict("steady", b"last").text.startswith("steady|last|"), f"{what}: no longer serves"
    )


def tell_growth(
    report: Report,
    what: str,
    before: Holdings,
    after: Holdings,
    readings: list[tuple[float, int]],
    growth: int = GROWTH,
) -> None:
    """Memory, of which ``growth`` more bytes are allowed, descriptors and threads."""
    # The first third is the caches' to fill.
    grows = slope(readings[len(readings) // 3 :])
    report.figure(f"{what}: resident memory", f"{before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB")
    report.figure(f"{what}: slope", f"{grows * 3600 / MIB:+.1f} MiB an hour")
    report.figure(f"{what}: descriptors", f"{before.descriptors} -> {after.descriptors}")
    report.figure(f"{what}: threads", f"{before.threads} -> {after.threads}")
    held = after.memory - before.memory
    report.hold(held <= growth, f"{what}: resident memory grew by {held / MIB:.0f} MiB")
    if len(readings) >= 300:
        report.hold(grows <= SLOPE, f"{what}: resident memory grows by {grows * 3600 / MIB:.0f} MiB an hour")
    report.hold(
        after.descriptors <= before.descriptors + 6, f"{what}: descriptors grew to {after.descriptors}"
    )
    report.hold(after.threads <= before.threads + 6, f"{what}: threads grew to {after.threads}")
