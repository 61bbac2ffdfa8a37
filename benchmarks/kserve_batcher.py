"""The experiment of KServe's page on its batcher, with the batcher that is built in.

Five clients send one instance each, again and again for ten seconds, to a model with one worker and
maxBatchSize 32, maxLatency 500: first with the window that KServe has, then adaptive. The model is a pause of
``--model-ms`` per call, whatever the batch: what the page's requests took beyond their window. Beside them
stands what the page reports. Who shared a batch is read from the answers' ``batchId``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_noop
from benchmarks.load import percentile
from benchmarks.options import DRY_RUN, OUT, run, tells_failures
from benchmarks.report import Mark, heading, machine, number, table, write_json
from benchmarks.servers import HOST, BenchmarkError, ModelServer, model_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODEL = "digits"
BODY = json.dumps({"instances": [{"data": "x" * 300, "target": 0}]}).encode()
BATCHER: dict[str, str | int] = {"max_batch_size": 32, "max_latency": 500, "timeout": 60}
WAYS: dict[str, dict[str, str | int]] = {
    "window": BATCHER,
    "adaptive": BATCHER | {"batch_policy": "adaptive"},
}
PERCENTS = (10, 25, 50, 75, 90, 95, 99)
# What the page prints (kserve reference 3).
DOCUMENTED = {
    "requests": 100.0,
    "seconds": 10.5361,
    "requests/s": 9.4912,
    "average s": 0.5265,
    "fastest s": 0.4983,
    "slowest s": 0.5759,
    "p10 s": 0.5100,
    "p25 s": 0.5118,
    "p50 s": 0.5149,
    "p75 s": 0.5406,
    "p90 s": 0.5706,
    "p95 s": 0.5733,
    "p99 s": 0.5759,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a client: seconds since the start, seconds that it took, and the batch that it was in."""

    client: int
    end: float
    latency: float
    batch: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all clients saw. ``failures`` are answers that are no predictions, whatever their status."""

    answers: list[Answer]
    failures: list[str]

    @property
    def figures(self) -> dict[str, float]:
        """Those that the page has, by the same names; the last answers count, as ``hey`` waits for them."""
        latencies = [answer.latency for answer in self.answers]
        seconds = max(answer.end for answer in self.answers)
        return {
            "requests": float(len(latencies)),
            "seconds": seconds,
            "requests/s": len(latencies) / seconds,
            "average s": statistics.fmean(latencies),
            "fastest s": min(latencies),
            "slowest s": max(latencies),
            **{f"p{percent} s": percentile(latencies, percent) for percent in PERCENTS},
        }

    @property
    def batches(self) -> dict[str, list[Answer]]:
        """The answers by ``batchId``, in the order of their first answers."""
        found: dict[str, list[Answer]] = {}
        for answer in sorted(self.answers, key=lambda each: each.end):
            found.setdefault(answer.batch, []).append(answer)
        return found

    @property
    def sizes(self) -> Counter[int]:
        """How many batches had how many requests."""
        return Counter(map(len, self.batches.values()))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks kserve_batcher", description=__doc__)
    add = parser.add_argument
    add("--duration", type=float, default=10.0, help="seconds of each way; default: 10, as on the page")
    add("--clients", type=int, default=5, help="default: 5, as on the page")
    add("--model-ms", type=float, default=15.0, help="what a call of the model takes; default: 15")
    add("--out", type=Path, help=OUT)
    add("--dry-run", action="store_true", help=DRY_RUN)
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if any request failed or the server does not start."""
    options = parse(arguments)
    facts = machine() | {
        "clients": f"{options.clients}, one instance each, on kept connections",
        "model": f"a pause of {options.model_ms:g} ms per call, one worker",
        "batcher": ", ".join(f"{name}={value}" for name, value in BATCHER.items()),
        "measurements": f"{', '.join(WAYS)}: {options.duration:g} s each, one after the other",
    }
    print(heading("KServe's batcher", facts))
    if options.dry_run:
        return 0
    outcomes = measure(options)
    failures = [f"{way}: {failure}" for way, found in outcomes.items() for failure in found.failures]
    if failures:
        print("\n".join(["void:", *failures[:10]]), file=sys.stderr)
        return 1
    marks = marks_of(outcomes, options.clients)
    print(report(outcomes, marks, own_rate(options)))
    write_json(
        options.out, {"machine": facts, "documented": DOCUMENTED, "ways": _plain(outcomes), "marks": marks}
    )
    return 0


def own_rate(options: argparse.Namespace) -> float:
    """Requests per second of the model alone, called with all clients' instances again and again."""
    rate: float = options.clients * 1e3 / options.model_ms
    return rate


def measure(options: argparse.Namespace) -> dict[str, Outcome]:
    """Each way with a server of its own. Raises BenchmarkError."""
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        store = Path(name) / "store"
        store.mkdir()
        archive = build_noop(store, MODEL, options.model_ms / 1e3)
        for way, parameters in WAYS.items():
            with model_server(store, Path(name) / way) as server:
                server.register(archive, MODEL, **parameters)
                outcomes[way] = ask(server, options.clients, options.duration)
    return outcomes


def ask(server: ModelServer, clients: int, seconds: float) -> Outcome:
    """Clients that each send their next request when their answer is there."""
    outcome = Outcome([], [])
    ready = threading.Barrier(clients + 1)
    threads = [
        threading.Thread(target=_client, args=(number_, server.port, ready, seconds, outcome))
        for number_ in range(clients)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    for thread in threads:
        thread.join()
    if not outcome.answers and not outcome.failures:
        outcome.failures.append("nothing was answered")
    return outcome


def _client(number_: int, port: int, ready: threading.Barrier, seconds: float, outcome: Outcome) -> None:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.connect()
        ready.wait()
        began = time.perf_counter()
        while (asked := time.perf_counter()) - began < seconds:
            try:
                batch = _predict(connection)
            except (OSError, http.client.HTTPException, BenchmarkError) as error:
                outcome.failures.append(f"client {number_}: {error}")
                return
            now = time.perf_counter()
            outcome.answers.append(Answer(number_, now - began, now - asked, batch))


def _predict(connection: http.client.HTTPConnection) -> str:
    """The ``batchId`` of one prediction; a body without predictions is a failure, also with status 200."""
    connection.request("POST", f"/v1/models/{MODEL}:predict", BODY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    said = json.loads(content) if answer.status == 200 else {}
    if said.get("message") != "" or len(said.get("predictions") or ()) != 1:
        raise BenchmarkError(f"answered {answer.status}: {content[:300]!r}")
    batch: str = said["batchId"]
    return batch


def marks_of(outcomes: Mapping[str, Outcome], clients: int) -> list[Mark]:
    """The page's rate with the window, whose batches hold all clients; more when adaptive."""
    window, adaptive = (outcomes[way].figures["requests/s"] for way in ("window", "adaptive"))
    whole = outcomes["window"].sizes[clients] / max(1, len(outcomes["window"].batches))
    unit = " requests/s"
    return [
        Mark("window", window, ">=", 9.4, unit),
        Mark("window", window, "<=", 10.0, unit),
        Mark(f"window: batches with a request of each of the {clients} clients", 100 * whole, ">=", 90, " %"),
        Mark("adaptive / window", adaptive / window, ">", 1.0),
    ]


def report(outcomes: Mapping[str, Outcome], marks: Sequence[Mark], alone: float) -> str:
    """Figures beside the documented ones, batches, marks."""
    found = {way: outcome.figures for way, outcome in outcomes.items()}
    rows = [
        [name, _shown(said), *(_shown(each[name]) for each in found.values())]
        for name, said in DOCUMENTED.items()
    ]
    lines = [table(["", "documented", *found], rows), "", f"The model alone: {number(alone)} requests/s"]
    for way, outcome in outcomes.items():
        sizes = ", ".join(f"{count} of {size}" for size, count in sorted(outcome.sizes.items(), reverse=True))
        lines += ["", f"Batches, {way}: {sizes} requests. The first:", ""]
        lines += [
            f"    {batch}  clients {', '.join(map(str, sorted(answer.client for answer in answers)))}"
            for batch, answers in list(outcome.batches.items())[:3]
        ]
    return "\n".join([*lines, "", *map(str, marks)])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4f}"


def _plain(outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    return {
        way: {"figures": outcome.figures, "batches": dict(outcome.sizes), "answers": outcome.answers}
        for way, outcome in outcomes.items()
    }


if __name__ == "__main__":
    run(main)
