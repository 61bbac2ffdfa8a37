"""What each protocol costs."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from benchmarks import protocols
from benchmarks.grpc_load import Calls, call_once, grpc_echo_server, run_grpc
from benchmarks.measure import Sample, cpu_ratio, named
from benchmarks.protocols import Asking, Point, askings, numbers, report
from benchmarks.servers import BenchmarkError

from modelserver.engine.tensors.rest import decode_request
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.tensors import read_request

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (1, 2, 3)
RAW = struct.pack("<6f", *numbers(SHAPE))
PREDICTIONS = Asking("/predictions", "/predictions/noop", b"x" * 5)
OURS, ECHO = Point("noop", PREDICTIONS, False), Point("noop", PREDICTIONS, True)


def test_all_protocols_ask_for_the_same_numbers() -> None:
    """V2 in all its forms has the bytes of /predictions, V1 the same lists."""
    plain, v1, v2, binary, typed, raw, torchserve = askings(SHAPE)
    header = dict(binary.headers)["Inference-Header-Content-Length"]
    tensors = [
        decode_request(v2.body, None).inputs,
        decode_request(binary.body, header).inputs,
        *(
            read_request(message("inference.ModelInferRequest").FromString(each.body)).inputs
            for each in (typed, raw)
        ),
    ]
    asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest").FromString(torchserve.body)

    assert plain.body == asked.input["data"] == RAW
    assert [(x.shape, x.datatype, bytes(x.data)) for (x,) in tensors] == [(SHAPE, "FP32", RAW)] * 4
    (instance,) = json.loads(v1.body)["instances"]
    assert [len(instance), *map(len, instance)] == [2, 3, 3]
    assert [value for row in instance for value in row] == numbers(SHAPE)


def test_dry_run_names_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    """Each protocol and its echo, for each content; nothing is started."""
    assert protocols.main(["--dry-run"]) == 0

    printed = capsys.readouterr().out
    assert printed.count("noop, ") == printed.count("tensor, ") == 14
    assert printed.count("echo of V2, gRPC, raw") == 2
    assert "tensor, /predictions, 602,112 bytes" in printed


def taken(point: Point, rate: float, cpu_us: float, repetition: int = 0, **failures: int) -> Sample:
    return Sample(str(point), 8, repetition, rate, cpu_us=cpu_us, failures=failures)


def test_a_protocol_is_compared_with_its_echo() -> None:
    """Ratios are those of the same repetition; a failure voids them."""
    samples = [taken(OURS, 50, 40), taken(ECHO, 100, 10), taken(OURS, 30, 60, 1), taken(ECHO, 100, 30, 1)]

    assert cpu_ratio(samples, named(OURS), named(ECHO)) == pytest.approx(3.0)
    cells = [cell.strip() for cell in report("noop", [OURS, ECHO], samples).splitlines()[4].split("|")[1:-1]]
    assert cells == ["/predictions", "5", "40.0", "100", "0.40", "50.0", "20.0", "3.00", "1.00"]
    broken = [*samples, taken(OURS, 1, 1, 2, read=1), taken(ECHO, 1, 1, 2)]
    assert cpu_ratio(broken, named(OURS), named(ECHO)) is None


def test_echo_of_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers any method; a load counts its answers, and what does not end well is told by its code."""
    with grpc_echo_server(tmp_path) as echo:
        assert b"ok" in call_once(echo.port, "/any.Service/Method", b"x" * 5_000_000)
        outcome = run_grpc(Calls(echo.port, "/any.Service/Method", b"x", 2, 0.1))
        monkeypatch.setattr("benchmarks.grpc_load.ANSWER_TIMEOUT", -1.0)
        late = run_grpc(Calls(echo.port, "/any.Service/Method", b"x", 1, 0.01))

    assert (outcome.failures, outcome.requests > 2, outcome.rate > 0) == ({}, True, True)
    assert late.requests == 0
    assert late.failures.keys() == {"status DEADLINE_EXCEEDED", "nothing answered"}


def test_an_echo_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one message with what it said."""
    monkeypatch.setattr("benchmarks.grpc_load.free_ports", lambda _: ["nowhere"])
    monkeypatch.setattr("benchmarks.grpc_load._listens", lambda _: False)

    with pytest.raises(BenchmarkError, match="nowhere"), grpc_echo_server(tmp_path):
        pass


@pytest.mark.slow
def test_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All protocols and their echoes are measured, and none is void."""
    out = tmp_path / "out.json"
    short = [
        "--contents",
        "noop",
        "--duration",
        "0.1",
        "--reps",
        "1",
        "--warmup",
        "0.1",
        "--client",
        "asyncio",
    ]

    assert protocols.main([*short, "--connections", "2", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    assert len(figures) == 14
    assert all(not figure["failures"] and figure["rate"] > 0 for figure in figures)
    assert "| TorchServe's gRPC |" in capsys.readouterr().out
