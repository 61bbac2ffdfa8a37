"""What a gRPC call costs, by h2load."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from benchmarks import grpc_cost
from benchmarks.grpc_cost import BEFORE, GRPC, HTTP, TORCHSERVE, marks, report
from benchmarks.h2load import Flood, outcome_of, run_h2load
from benchmarks.measure import Sample
from benchmarks.servers import BenchmarkError, CpuMeter

if TYPE_CHECKING:
    from pathlib import Path

FLOOD = Flood("http://127.0.0.1:1/x", b"hello", 2, 2, 4, 9, grpc=True)
SAID = """
finished in 1.00s, 4.00 req/s, 116.71KB/s
requests: 4 total, 4 started, 4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 234.51KB (240139) total, 177.73KB (181993) headers (space savings 11.89%), 36B (36) data
"""
LOG = "1700000000000000\t200\t1500\n" * 4


def test_what_h2load_says() -> None:
    """Rate, and latencies in ms from its log; the processor time of the client is passed on."""
    found = outcome_of(FLOOD, SAID, LOG, 0.25)

    assert (found.requests, found.rate, found.failures, found.client_cpu) == (4, 4.0, {}, 0.25)
    assert found.p50_ms == found.p99_ms == 1.5


@pytest.mark.parametrize(
    ("now", "then", "reason"),
    [
        ("4 succeeded, 0 failed", "3 succeeded, 1 failed", "failed, errored or timed out"),
        ("4 2xx, 0 3xx", "3 2xx, 0 3xx", "status other than 2xx"),
        ("(36) data", "(27) data", "answers of another size"),
    ],
)
def test_failures_void_a_figure(now: str, then: str, reason: str) -> None:
    """Also calls that were answered 200 with a status of gRPC and no message."""
    assert now in SAID
    assert outcome_of(FLOOD, SAID.replace(now, then), LOG, 0.0).failures == {reason: 1}


def test_h2load_that_says_something_else() -> None:
    """Another version's words are an error, not a figure."""
    with pytest.raises(BenchmarkError, match="something unknown"):
        outcome_of(FLOOD, "hello", LOG, 0.0)


def test_without_h2load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says how to install it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("h2load") is None
    with pytest.raises(BenchmarkError, match="apt-get install nghttp2-client"):
        run_h2load(FLOOD)


def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what would be measured, and starts nothing."""
    assert grpc_cost.main(["--dry-run", "--duration", "7"]) == 0

    assert "3 x about 7 s, interleaved" in capsys.readouterr().out


def samples(*subjects: tuple[str, float, float]) -> list[Sample]:
    return [
        Sample(name, connections, 0, rate, 1.0, 2.0, cpu)
        for connections in (4, 32)
        for name, rate, cpu in subjects
    ]


def test_marks_are_of_what_was_measured() -> None:
    """The cost beside HTTP in any case; rates beside others where they took part."""
    taken = samples((HTTP, 1000, 50), (GRPC, 900, 100))
    assert [(mark.value, mark.reached) for mark in marks(taken)] == [(2.0, True)] * 2
    taken = samples((HTTP, 1000, 50), (GRPC, 900, 200), (BEFORE, 300, 1), (TORCHSERVE, 500, 1))
    found = {mark.what: mark.reached for mark in marks(taken)}

    assert list(found.values()) == [False, True, False] * 2
    assert "rate of gRPC / TorchServe's gRPC at 32 x 4" in found
    assert "| gRPC, 4 x 8 " in report(taken)


def test_processor_time_of_one_process() -> None:
    """A meter may leave out the processes that a server has started."""
    meter = CpuMeter(1, alone=True)

    assert meter.used() >= 0
    assert list(meter._before) == [1]
