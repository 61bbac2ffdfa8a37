"""The marks of the comparison."""

from __future__ import annotations

from benchmarks.comparison_report import work_document, work_text
from benchmarks.lone import Lone
from benchmarks.measure import Sample
from benchmarks.servers import Memory
from benchmarks.serving import Start
from benchmarks.side_by_side import Result, largest_rates, median_memory, median_start
from benchmarks.targets import (
    best_loop,
    kserve_marks,
    lone_marks,
    marks,
    mlp_marks,
    noop_marks,
    rate_mark,
    resnet_marks,
    start_marks,
    worker_marks,
)
from benchmarks.works import WORKS

TITLES = {"window": "modelserver, window", "echo": "uvicorn echo"}


def taken(subject: str, connections: int, rate: float, p99_ms: float = 2.0, **failures: int) -> Sample:
    return Sample(subject, connections, 0, rate, p50_ms=1.0, p99_ms=p99_ms, cpu_us=9.0, failures=failures)


def result(work: str, *samples: Sample) -> Result:
    return Result(WORKS[work], samples=list(samples))


def test_nothing_run_is_nothing_reached() -> None:
    """Every mark is there without any result, and says that it was not run."""
    found = marks({})

    assert len(found) > 60
    assert not any(mark.reached for mark in found)
    assert all(str(mark).endswith(": not run") for mark in found)


def test_a_rate_is_compared_at_the_same_connections() -> None:
    """Two thirds of the echo are no 0.7, three quarters are."""
    results = {"noop_b32": result("noop_b32", taken("window", 32, 75), taken("echo", 32, 100))}
    reached = rate_mark(results, "noop_b32", "window", "echo", at=32, target=0.7)
    missed = rate_mark(results, "noop_b32", "window", "echo", at=32, target=0.8)
    other = rate_mark(results, "noop_b32", "window", "echo", at=128, target=0.7)

    assert (reached.reached, missed.reached, other.reached) == (True, False, False)
    assert str(other).endswith("not run")


def test_a_failure_voids_the_mark() -> None:
    """A refusal on either side is told as void, not as missing."""
    results = {"noop_b32": result("noop_b32", taken("window", 32, 75), taken("echo", 32, 1, read=1))}
    mark = rate_mark(results, "noop_b32", "window", "echo", at=32, target=0.1)

    assert not mark.reached
    assert str(mark).endswith("void")


def test_the_marks_of_the_no_op_are_those_wanted() -> None:
    """0.7 of the echo and 4 and 2 times TorchServe in batches; 0.45 and 8 times one by one."""
    told = [str(mark) for mark in noop_marks({})]

    assert any("noop_b32, adaptive at 128 connections / echo >= 0.7" in line for line in told)
    assert any("noop_b32, window at 32 connections / TorchServe >= 4" in line for line in told)
    assert any("/ TorchServe with logs off >= 2" in line for line in told)
    assert any("noop_b1, window at 32 connections / echo >= 0.45" in line for line in told)
    assert any("noop_b1, window at 128 connections / TorchServe >= 8" in line for line in told)


def test_every_other_peer_must_be_behind() -> None:
    """Being as fast as a peer is not being ahead of it."""
    even = {"mlp_b32": result("mlp_b32", taken("window", 128, 100), taken("litserve", 128, 100))}
    ahead = {"mlp_b32": result("mlp_b32", taken("window", 128, 101), taken("litserve", 128, 100))}

    assert [mark.reached for mark in mlp_marks(even) if mark.value] == [False]
    assert [mark.reached for mark in mlp_marks(ahead) if mark.value] == [True]


def test_the_tail_at_half_load_is_below_every_peers() -> None:
    """Each server was asked half of its own largest rate."""
    work = result("mlp_b32")
    work.half.extend([taken("adaptive", 256, 500, 3.0), taken("litserve", 256, 100, 4.0)])
    work.half.append(taken("torchserve", 256, 200, 2.0))
    known = {
        mark.what.rpartition(" / ")[2]: mark.reached for mark in mlp_marks({"mlp_b32": work}) if mark.value
    }

    assert known == {"LitServe": True, "TorchServe": False}


def test_a_lone_client_waits_for_the_handler_only() -> None:
    """At most 1 ms above the handler's own time; a failed request voids it."""
    results = {name: Result(WORKS[name]) for name in ("lone_noop", "lone_mlp")}
    results["lone_noop"].lone["adaptive"] = Lone("noop", 0, 1.5, 2.0, 0.6, failures=0)
    results["lone_mlp"].lone["adaptive"] = Lone("mlp", 0, 1.5, 2.0, 0.6, failures=1)
    fine, void = lone_marks(results)

    assert fine.reached
    assert str(void).endswith("void")


def test_five_clients_of_a_window_of_half_a_second_have_a_narrow_rate() -> None:
    """9.4 to 10 requests a second with the window, a hundred times KServe's without."""
    fine = {"kserve5": result("kserve5", taken("window", 5, 9.9), taken("adaptive", 5, 950))}
    fast = {"kserve5": result("kserve5", taken("window", 5, 11), taken("adaptive", 5, 940))}

    assert [mark.reached for mark in kserve_marks(fine)] == [True, True, True]
    assert [mark.reached for mark in kserve_marks(fast)] == [False, True, False]


def test_the_best_loop_is_the_base() -> None:
    """Not the first one, and a compiled one only for those that compile."""
    work = result(
        "resnet_b8",
        taken("loop, decode", 0, 9.0),
        taken("loop, folded", 0, 10.0),
        taken("loop, compiled", 0, 14.0),
        taken("window", 8, 9.8),
        taken("compile", 8, 13.0),
    )
    known = {mark.what: mark for mark in resnet_marks({"resnet_b8": work}) if mark.value}
    eager = known["resnet_b8, window at 8 connections / best eager fp32 loop (loop, folded)"]
    compiled = known["resnet_b8, compile at 8 connections / best fp32 loop, compiled or not (loop, compiled)"]

    assert best_loop(work, ("decode", "folded")) == "loop, folded"
    assert best_loop(None, ("decode",)) is None
    assert (eager.reached, compiled.reached) == (True, False)


def test_starts_and_memory_are_medians() -> None:
    """One slow start of three does not count; memory is at most half of TorchServe's."""
    work = Result(WORKS["start"])
    work.starts["window"] = [Start(0.5, 1, 1), Start(0.55, 1, 1), Start(9, 9, 9)]
    work.starts["torchserve"] = [Start(2, 5, 6)]
    work.memory.update({"window": [Memory(90, 60, 2)], "torchserve": [Memory(800, 700, 3)]})
    listening, answer, memory = start_marks({"start": work})

    assert (listening.reached, listening.value) == (True, 0.55)
    assert (answer.reached, memory.reached) == (True, True)
    assert median_start(work.starts["window"]) == Start(0.55, 1, 1)
    assert median_memory(work.memory["torchserve"]).processes == 3


def test_workers_share_memory() -> None:
    """Four may have one and a half times the proportional memory of one."""
    results = {name: Result(WORKS[name]) for name in ("workers_1", "workers_4")}
    results["workers_1"].memory["window"] = [Memory(900, 800, 2)]
    results["workers_4"].memory["window"] = [Memory(4000, 1300, 5)]
    (mark,) = worker_marks(results)

    assert not mark.reached
    assert mark.value == 1300 / 800


def test_half_of_the_largest_rate_is_taken_where_it_was_reached() -> None:
    """The best number of connections counts; a void subject has no rate."""
    samples = [taken("a", 8, 10), taken("a", 32, 30), taken("a", 128, 20), taken("b", 8, 5, read=1)]

    assert largest_rates(samples) == {"a": 30}


def test_a_work_is_told_with_its_ratios_and_refusals() -> None:
    """Tables name servers by their titles; what failed or is missing stands below."""
    work = result("noop_b1", taken("echo", 8, 100), taken("window", 8, 50), taken("window", 32, 1, read=2))
    work.refusals["litserve"] = "no\nport"
    text = work_text(work, TITLES)
    ratios = work_document(work)["ratios"]

    assert "| modelserver, window |           8 |       50.0 |" in text
    assert any(line.endswith("   0.50 |") for line in text.splitlines())
    assert "void: window at 32: read x 2" in text
    assert "cannot start: litserve: no ... port" in text
    assert isinstance(ratios, list)
    assert [each["to echo"] for each in ratios] == [1.0, 0.5, None]
