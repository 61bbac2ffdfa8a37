"""Servers from launch to first answer, arrivals at a given rate, and the loops' networks."""

from __future__ import annotations

import itertools
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks import paced
from benchmarks.load import Load, Outcome, run_asyncio
from benchmarks.networks import FORMS, Rows, folded, formed, laid_out
from benchmarks.paced import arrivals, run_paced
from benchmarks.peers.launch import SUBJECTS, Job, Launch
from benchmarks.servers import BenchmarkError, memory_of
from benchmarks.serving import served
from benchmarks.side_by_side import Plan, measure_work
from benchmarks.works import WORKS, Question, raw_body
from torchvision import models

from modelserver.tools.tune.own_server import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

QUESTION = Question("/predict", b"x", "text/plain")
ANSWERING = """
import sys, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def do_POST(self):
        self.send_response(int(sys.argv[2])); self.end_headers(); self.wfile.write(b"because")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SLOW = """
import sys, time, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.02)
        self.do_GET()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def plan(folder: Path, **more: object) -> Plan:
    settings: Mapping[str, object] = {
        "folder": folder,
        "store": folder,
        "archives": {"noop": "noop.mar"},
        "arch": "resnet18",
        "picture": b"",
        "peers": None,
        "threads": 1,
        "queue": 10,
        "duration": 0.2,
        "warmup": 0.1,
        "reps": 2,
        "client": "asyncio",
        "connections": (8,),
    } | more
    return Plan(**settings)  # type: ignore[arg-type]


def launch(script: str, *arguments: str) -> Launch:
    (port,) = free_ports(1)
    command = (sys.executable, "-c", script, str(port), *arguments)
    return Launch(command, port, QUESTION, "none", "/")


def test_a_server_is_timed_to_its_first_answer(tmp_path: Path) -> None:
    """It listens, is healthy and answers, in this order; afterwards it is gone."""
    with served(launch(ANSWERING, "200"), tmp_path) as server:
        start = server.start
        memory = memory_of(server.running.pid)

    assert 0 < start.listening_s <= start.ready_s <= start.answer_s
    assert 0 < memory.pss_mb <= memory.rss_mb
    assert memory_of(server.running.pid).processes == 0


def test_a_server_that_ends_is_told_with_its_output(tmp_path: Path) -> None:
    """The status and the last lines are the reason."""
    with (
        pytest.raises(BenchmarkError, match=r"status 1\n(.|\n)*no memory"),
        served(launch("raise SystemExit('no memory')"), tmp_path),
    ):
        pass


def test_a_wrong_question_is_not_repeated(tmp_path: Path) -> None:
    """422 means that the body is wrong, so nobody waits for it to become right."""
    with pytest.raises(BenchmarkError, match="422 because"), served(launch(ANSWERING, "422"), tmp_path):
        pass


def test_a_refused_registration_is_a_reason(tmp_path: Path) -> None:
    """The answer of the management API is in the message."""
    refused = launch(ANSWERING, "507")
    asking = Launch(
        refused.command, refused.port, QUESTION, "none", "/", registration=(refused.port, "/models?url=x")
    )
    with (
        pytest.raises(BenchmarkError, match=r"/models.* was answered 507: because"),
        served(asking, tmp_path),
    ):
        pass


def test_servers_are_loaded_in_turns(tmp_path: Path) -> None:
    """Each repetition meets every server; starts and memory are known, and who cannot start is refused."""
    subjects = [SUBJECTS["echo"], SUBJECTS["litserve"]]
    result = measure_work(WORKS["noop_b1"], subjects, plan(tmp_path))

    assert [(each.subject, each.connections, each.repetition) for each in result.samples] == [
        ("echo", 8, 0),
        ("echo", 8, 1),
    ]
    assert list(result.starts) == list(result.memory) == ["echo"]
    assert "no folder" in result.refusals["litserve"]


def test_a_server_that_breaks_is_no_end_of_the_work(tmp_path: Path) -> None:
    """It is refused with its reason, and the others are measured."""

    def broken(_job: Job) -> Launch:
        return launch("raise SystemExit('no licence')")

    bad = SUBJECTS["fastapi"]
    subject = type(bad)("fastapi", bad.title, bad.group, broken, bad.works)
    result = measure_work(WORKS["noop_b1"], [subject, SUBJECTS["echo"]], plan(tmp_path, reps=1))

    assert "no licence" in result.refusals["fastapi"]
    assert {each.subject for each in result.samples} == {"echo"}


def test_starting_is_measured_alone_and_again(tmp_path: Path) -> None:
    """As many starts as repetitions, each with its memory."""
    result = measure_work(WORKS["start"], [SUBJECTS["echo"]], plan(tmp_path))

    assert len(result.starts["echo"]) == len(result.memory["echo"]) == 2
    assert result.samples == []


# Arrivals at a given rate


def test_arrivals_come_by_chance_at_their_rate() -> None:
    """Ascending, the same each time, about as many as asked for, and not evenly."""
    times = arrivals(1000, 5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]

    assert times == sorted(times) == arrivals(1000, 5)
    assert 4700 < len(times) < 5300
    assert min(gaps) < 0.0002 < 0.003 < max(gaps)


def test_requests_arrive_whether_or_not_others_were_answered(tmp_path: Path) -> None:
    """All that arrive in the time are asked and answered once."""
    job = plan(tmp_path).job(WORKS["noop_b1"], 0)
    with served(SUBJECTS["echo"].launch(job), job.folder) as server:
        load = Load(server.url, b"x", "text/plain", 16, 0.5)
        outcome = run_paced(load, 200, "asyncio")

    assert outcome.failures == {}
    assert outcome.requests == len(arrivals(200, 0.5))
    assert 0 < outcome.p50_ms <= outcome.p99_ms


def test_waiting_for_a_connection_counts(tmp_path: Path) -> None:
    """One connection and answers after 20 ms: who comes last has waited for those before."""
    with served(launch(SLOW), tmp_path) as server:
        outcome = run_paced(Load(server.url, b"x", "text/plain", 1, 0.2), 100, "asyncio")

    assert outcome.failures == {}
    assert outcome.requests == len(arrivals(100, 0.2))
    assert outcome.p99_ms > 60


def test_a_measurement_lasts_until_an_answer(tmp_path: Path) -> None:
    """A closed loop that is shorter than the first answer is made longer, so that there is a rate."""
    with served(launch(SLOW), tmp_path) as server:
        outcome = run_asyncio(Load(server.url, b"x", "text/plain", 2, 0.001))

    assert outcome.failures == {}
    assert outcome.rate > 0


def test_pauses_make_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """By wrk each connection pauses as long as its turn lasts, less the time of an answer."""
    pauses = []

    def run_wrk(load: Load, *, pause_ms: float) -> Outcome:
        pauses.append((load.seconds, pause_ms))
        return Outcome(100, 50.0, 4.0, 9.0, {}, "wrk", 0.5)

    monkeypatch.setattr(paced, "run_wrk", run_wrk)
    outcome = run_paced(Load("http://127.0.0.1:9/", b"", "text/plain", 100, 3.0), 2000, "wrk")

    assert pauses == [(1.0, 50.0), (3.0, 46.0)]
    assert (outcome.requests, outcome.client_cpu, outcome.rate) == (200, 1.0, 50.0)


def test_wrk_keeps_the_rate(tmp_path: Path) -> None:
    """Where wrk is installed, requests come about as often as asked for."""
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    job = plan(tmp_path).job(WORKS["noop_b1"], 0)
    with served(SUBJECTS["echo"].launch(job), job.folder) as server:
        outcome = run_paced(Load(server.url, b"x", "text/plain", 64, 1.0), 400, "wrk")

    assert outcome.failures == {}
    assert 250 < outcome.rate < 500


def test_no_rate_is_refused() -> None:
    """Zero requests a second are no load."""
    with pytest.raises(ValueError, match="above 0"):
        run_paced(Load("http://127.0.0.1:9/", b"", "text/plain", 1, 0.1), 0.0)


# The loops' networks


def used(network: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that a traced network calls."""
    assert isinstance(network, torch.fx.GraphModule)
    return [
        network.get_submodule(str(node.target)) for node in network.graph.nodes if node.op == "call_module"
    ]


def test_folding_does_not_change_the_answer() -> None:
    """No batch normalisation is left, and the scores stay within 1e-4."""
    torch.manual_seed(0)
    network = models.resnet18(weights=None).eval()
    batch = torch.rand(2, 3, 64, 64)
    made = folded(network)
    with torch.no_grad():
        difference = (network(batch) - made(batch)).abs().max().item()

    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in used(made))
    assert difference < 1e-4


@pytest.mark.parametrize("name", ["plain", "channels_last", "folded, channels_last"])
def test_forms_of_fp32_compute_the_same(name: str) -> None:
    """Layout and folding are not to be seen in the scores."""
    torch.manual_seed(0)
    network = models.resnet18(weights=None).eval()
    batch = torch.rand(2, 3, 64, 64)
    form = FORMS[name]
    made = formed(network, form, batch)
    with torch.no_grad():
        difference = (network(batch) - made(laid_out(batch, form))).abs().max().item()

    assert difference < 1e-4


def test_half_precision_is_a_form_of_its_own() -> None:
    """Weights and input are bfloat16."""
    network = models.resnet18(weights=None).eval()
    batch = torch.rand(1, 3, 64, 64)
    made = formed(network, FORMS["bf16"], batch)

    assert {each.dtype for each in made.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in network.parameters()} == {torch.float32}, (
        "the network itself is left alone"
    )
    assert laid_out(batch, FORMS["bf16"]).dtype == torch.bfloat16


def test_rows_go_from_json_to_json() -> None:
    """The small network's loop does all that a request asks for."""
    body = raw_body("mlp", b"")[0]
    answers = Rows().work("rows", [body, body])()

    assert isinstance(answers, list)
    assert answers[0] == answers[1]
    assert '"probs"' in answers[0]
