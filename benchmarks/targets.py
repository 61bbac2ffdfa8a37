"""What the comparison should come to. A mark that was not run is not reached, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from benchmarks.measure import Sample, figures, of, quotient, ratio
from benchmarks.peers.packages import PEERS
from benchmarks.report import VOID, Mark
from benchmarks.side_by_side import EAGER_LOOPS, LOOP, Result, Sizes, medians
from benchmarks.works import WORKS

NOT_RUN = "not run"
TITLES = {
    "bf16-compile": "bf16, compile",
    "torchserve": "TorchServe",
    "torchserve-quiet": "TorchServe with logs off",
}
RIVALS = tuple(PEERS)


# Rates beside those of plain HTTP and TorchServe: ours, another's, the least ratio.
NOOP_B32 = [
    (ours, base, least)
    for ours in ("window", "adaptive")
    for base, least in (("echo", 0.7), ("torchserve", 4.0), ("torchserve-quiet", 2.0))
]
NOOP_B1 = [("window", "echo", 0.45), ("window", "torchserve", 8.0)]
# With ResNet beside TorchServe.
RATIOS = {"window": 1.3, "adaptive": 1.3, "compile": 1.5, "bf16": 2.2, "bf16-compile": 2.8, "int8": 4.5}
RESNET = [*((ours, "torchserve", least) for ours, least in RATIOS.items()), ("int8", "bf16", 1.6)]


def marks(measured: Mapping[str, Result]) -> list[Mark]:
    """All of them, in the order of the works."""
    results = {name: measured.get(name, Result(work)) for name, work in WORKS.items()}
    return [
        *start_marks(results),
        *(rate_mark(results, "noop_b32", *row, at=at) for at in (32, 128) for row in NOOP_B32),
        *(rate_mark(results, "noop_b1", *row, at=at) for at in (32, 128) for row in NOOP_B1),
        *mlp_marks(results),
        *lone_marks(results),
        *kserve_marks(results),
        *loop_marks(results),
        *(rate_mark(results, "resnet_b8", *row, at=at) for at in (8, 16, 32) for row in RESNET),
        *worker_marks(results),
    ]


def mlp_marks(results: Mapping[str, Result]) -> list[Mark]:
    """Throughput against all peers at 128 connections, and the latency at half of each one's largest rate."""
    group = []
    for ours in ("window", "adaptive"):
        for base, least in (("torchserve", 3.0), ("torchserve-quiet", 2.0)):
            group.append(rate_mark(results, "mlp_b32", ours, base, least, at=128))
        group += [rate_mark(results, "mlp_b32", ours, peer, 1.0, at=128, relation=">") for peer in RIVALS[1:]]
    return group + [_half_mark(results, peer) for peer in ("torchserve", "torchserve-quiet", *RIVALS[1:])]


def lone_marks(results: Mapping[str, Result]) -> list[Mark]:
    """A sequential client waits for the handler, and hardly for anything else."""
    group = []
    for work in ("lone_noop", "lone_mlp"):
        lone = results[work].lone.get("adaptive")
        what = f"{work}, adaptive: p50 less the handler's own time"
        added = lone.added_ms if lone is not None else None
        group.append(Mark(what, added, "<=", 1.0, " ms", NOT_RUN if lone is None else VOID))
    return group


def kserve_marks(results: Mapping[str, Result]) -> list[Mark]:
    """Five clients: a window of 500 ms is a tenth of a second each; KServe's page reports 9.49 requests/s."""
    figure = {each.subject: each for each in figures(results["kserve5"].samples) if each.connections == 5}

    def mark(name: str, relation: Literal[">=", "<="], target: float) -> Mark:
        rate, absent = (figure[name].rate, VOID) if name in figure else (None, NOT_RUN)
        return Mark(f"kserve5, {name}", rate, relation, target, " requests/s", absent)

    return [mark("adaptive", ">=", 949.0), mark("window", ">=", 9.4), mark("window", "<=", 10.0)]


def loop_marks(results: Mapping[str, Result]) -> list[Mark]:
    """Against the best loops without a server."""
    result = results["resnet_b8"]
    eager, any_fp32 = best_loop(result, EAGER_LOOPS), best_loop(result, (*EAGER_LOOPS, "compiled"))
    rows = (
        *((ours, eager, "best eager fp32 loop") for ours in ("window", "adaptive")),
        ("compile", any_fp32, "best fp32 loop, compiled or not"),
    )
    return [_loop_mark(result.samples, *row, at) for at in (8, 16, 32) for row in rows]


def start_marks(results: Mapping[str, Result]) -> list[Mark]:
    """Quick to listen, no slower than TorchServe to answer, and half of its memory at most."""
    start, both = results["start"], ("window", "torchserve")
    listening = _median(start.starts, "window", "listening_s")
    answers = quotient(*(_median(start.starts, name, "answer_s") for name in both))
    memory = quotient(*(_median(start.memory, name, "rss_mb") for name in both))
    return [
        Mark("start to listening", listening, "<=", 0.6, " s", NOT_RUN),
        Mark("start to first answer / TorchServe's", answers, "<=", 1.0, "", NOT_RUN),
        Mark("resident memory, no-op, one worker / TorchServe's", memory, "<=", 0.5, "", NOT_RUN),
    ]


def worker_marks(results: Mapping[str, Result]) -> list[Mark]:
    """Workers share their memory."""
    sizes = [_median(results[work].memory, "window", "pss_mb") for work in ("workers_4", "workers_1")]
    what = "proportional memory of 4 ResNet workers / of 1"
    return [Mark(what, quotient(*sizes), "<=", 1.5, "", NOT_RUN)]


def _median(taken: Mapping[str, Sequence[Sizes]], subject: str, what: str) -> float | None:
    every = taken.get(subject)
    return getattr(medians(every), what) if every else None


def best_loop(result: Result, kinds: Sequence[str]) -> str | None:
    """The subject among these loops with the largest median, None if none was run."""
    names = {f"{LOOP}, {kind}" for kind in kinds}
    loops = [each for each in figures(result.samples) if each.subject in names and each.rate]
    return max(loops, key=lambda each: each.rate or 0.0).subject if loops else None


def rate_mark(
    results: Mapping[str, Result],
    work: str,
    ours: str,
    base: str,
    target: float,
    *,
    at: int,
    relation: Literal[">=", ">"] = ">=",
) -> Mark:
    """Our rate by another's at the same number of connections."""
    what = f"{work}, {title(ours)} at {at} connections / {title(base)}"
    samples, both = results[work].samples, (of(ours, at), of(base, at))
    value = ratio(samples, *both)
    run = all(any(map(each, samples)) for each in both)
    return Mark(what, value, relation, target, "", VOID if run else NOT_RUN)


def title(name: str) -> str:
    """A subject in a mark."""
    return PEERS[name].title if name in PEERS else TITLES.get(name, name)


def _loop_mark(samples: Sequence[Sample], ours: str, loop: str | None, called: str, at: int) -> Mark:
    named = f" ({loop})" if loop else ""
    what = f"resnet_b8, {title(ours)} at {at} connections / {called}{named}"
    value = ratio(samples, of(ours, at), of(loop, 0)) if loop else None
    run = loop is not None and any(map(of(ours, at), samples))
    return Mark(what, value, ">=", 0.97, "", VOID if run else NOT_RUN)


def _half_mark(results: Mapping[str, Result], peer: str) -> Mark:
    by_name = {each.subject: each for each in figures(results["mlp_b32"].half)}
    what = f"p99 at half of the largest rate (MLP), adaptive / {title(peer)}"
    ours, others = by_name.get("adaptive"), by_name.get(peer)
    if ours is None or others is None:
        return Mark(what, None, "<", 1.0, "", NOT_RUN)
    return Mark(what, quotient(ours.p99_ms, others.p99_ms), "<", 1.0)
