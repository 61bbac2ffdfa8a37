"""Sends the same requests to both servers, and collects the differences with their reasons."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode

from modelserver.engine.telemetry.text import shortened
from modelserver.tools.commands import message_of
from modelserver.tools.migrate import grpc_calls
from modelserver.tools.migrate.archives import Archive, read_archive
from modelserver.tools.migrate.calls import MigrationError, Probe, Response
from modelserver.tools.migrate.changes import Rule, good
from modelserver.tools.migrate.comparison import masked, mismatches
from modelserver.tools.migrate.installation import Installation
from modelserver.tools.migrate.requests import Subject, changes_state, requests_of
from modelserver.tools.migrate.rules import VARIES, explain
from modelserver.tools.migrate.servers import ComparedServer, ServedVersion, wait_settled
from modelserver.tools.migrate.usage import Advice, Usage, advice_on, usage_of
from modelserver.tools.tune.bench import run_load
from modelserver.tools.tune.client import LoadSpec, closed_loop
from modelserver.tools.tune.figure import Figure, summed_up
from modelserver.tools.tune.progress import Progressing

SAME, EXPLAINED, UNKNOWN = "same", "explained", "unknown"
_LONGEST_LINE = 200
_ABSENT, _NOT_READY = "it is not registered there", "none of its workers is ready there"
_MOST_CLIENTS = 64
_SETTLING = 0.25  # of the measured time, before it


@dataclass(frozen=True, slots=True)
class Compared:
    """A request and both answers, masked.

    ``what`` says in lines what is not the same; ``reasons`` has rules that explain it together, several times
    if each would do. ``milliseconds`` are TorchServe's and ours.
    """

    call: Probe
    reference: Response
    ours: Response
    milliseconds: tuple[float, float]
    what: Sequence[str] = ()
    reasons: Sequence[tuple[Rule, ...]] = ()

    @property
    def summary_line(self) -> str:
        """The request and the first thing that is not the same, in a line."""
        first = " ".join(self.what[0].split()) if self.what else SAME
        return shortened(f"{self.call.name}: {first}", _LONGEST_LINE)

    @property
    def verdict(self) -> str:
        """``same``, ``explained`` or ``unknown``."""
        if not self.what:
            return SAME
        return EXPLAINED if self.reasons else UNKNOWN


@dataclass(frozen=True, slots=True)
class Missing:
    """A model version that one of the servers does not serve, and why if it is known."""

    version: ServedVersion
    server: str
    why: str


@dataclass(slots=True)
class Proof:
    """Everything that was found. ``memory`` and ``start`` (bytes, seconds) are TorchServe's and ours."""

    subjects: Sequence[Subject] = ()
    missing: Sequence[Missing] = ()
    compared: list[Compared] = field(default_factory=list)
    left_out: int = 0
    usage: Usage = field(default_factory=dict)
    advice: Sequence[Advice] = ()
    measured: list[LoadFigures] = field(default_factory=list)
    memory: tuple[int | None, int | None] = (None, None)
    start: tuple[float | None, float | None] = (None, None)
    remarks: list[str] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        """The requests with this verdict."""
        return sum(each.verdict == verdict for each in self.compared)

    @property
    def verdict(self) -> str:
        """``unknown`` if anything is, or if a model is served by TorchServe only."""
        if self.count(UNKNOWN) or any(each.server == "modelserver" for each in self.missing):
            return UNKNOWN
        return EXPLAINED if self.count(EXPLAINED) or self.missing else SAME


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """The requests, and the servers that receive them.

    ``seconds`` of load on each model and server, 0 for none; ``read_only``: the TorchServe is somebody's
    running one, whose state nothing may change; ``workdir`` is for unpacked archives.
    """

    installation: Installation
    reference: ComparedServer
    ours: ComparedServer
    source: str
    seconds: float
    read_only: bool
    workdir: Path


def prove(plan: ProofPlan, listener: Progressing) -> Proof:
    """Asks, compares and measures. Raises MigrationError if the requests cannot be read."""
    proof = Proof(start=(plan.reference.seconds, plan.ours.seconds))
    archives = _subjects(plan, proof, align_versions(plan))
    envelope = plan.installation.loaded.settings.service_envelope
    calls = requests_of(plan.source, proof.subjects, envelope, proof.remarks.append)
    allowed = [call for call in calls if not (plan.read_only and changes_state(call))]
    proof.left_out = len(calls) - len(allowed)
    if not plan.reference.ask(Probe("", "metrics", "GET", "/metrics")).status:
        proof.remarks.append("TorchServe's metrics address does not answer: metrics were not compared.")
        allowed = [call for call in allowed if call.port != "metrics"]
    if any(call.method == grpc_calls.METHOD for call in allowed) and not _answers_grpc(plan.reference):
        proof.remarks.append("TorchServe's gRPC does not answer, or wants TLS: gRPC was not compared.")
        allowed = [call for call in allowed if call.method != grpc_calls.METHOD]
    listener.stage(f"asking both servers {len(allowed)} requests")
    for number, call in enumerate(allowed):
        listener.trying(call.name, number / len(allowed))
        proof.compared.append(compare(plan, call))
    for name in dict.fromkeys(subject.version.name for subject in proof.subjects):
        if not any(_predicts(call, name) for call in _good(proof)):
            proof.remarks.append(
                f"{name}: no prediction was answered well by both, so nothing is shown of it."
            )
    proof.usage = usage_of(plan.installation, calls, archives)
    proof.advice = advice_on(plan.installation, proof.usage, archives)
    if plan.seconds:
        _measure(plan, proof, listener)
    proof.memory = (plan.reference.memory(), plan.ours.memory())
    return proof


def _answers_grpc(server: ComparedServer) -> bool:
    return "grpc_inference" in server.addresses and bool(server.ask(next(grpc_calls.general(""))).status)


def align_versions(plan: ProofPlan) -> dict[tuple[str, str], str]:
    """Does with modelserver what TorchServe was told since its start: versions, workers, defaults.

    Returns why versions could not be registered, by name and version.
    """
    versions = plan.ours.versions()
    here = {(version.name, version.version): version for version in versions}
    first = {version.name: version for version in reversed(versions)}
    refused: dict[tuple[str, str], str] = {}
    chosen: set[str] = set()
    for reference in plan.reference.versions():
        ours = here.get((reference.name, reference.version))
        path = f"/models/{quote(reference.name, safe='')}/{quote(reference.version, safe='')}"
        workers = {"min_worker": reference.min_workers, "max_worker": reference.max_workers}
        if ours is None:
            answer = _manage(plan, "POST", f"/models?{urlencode(_registration(reference))}")
            if not good(answer):
                refused[reference.name, reference.version] = message_of(answer.body or b"")
        elif plan.read_only and ours.workers != reference.workers:
            _manage(plan, "PUT", f"{path}?{urlencode(workers)}")
        default = first.get(reference.name, reference)
        if reference.name not in chosen and default.version != reference.version:
            _manage(plan, "PUT", f"{path}/set-default")
        chosen.add(reference.name)
    wait_settled(plan.ours)
    return refused


def _registration(version: ServedVersion) -> dict[str, object]:
    return {
        "url": version.url,
        "model_name": version.name,
        "batch_size": version.batch_size,
        "max_batch_delay": version.max_batch_delay,
        "response_timeout": version.response_timeout,
        "initial_workers": version.min_workers,
    }


def _manage(plan: ProofPlan, method: str, path: str) -> Response:
    return plan.ours.ask(Probe("", "management", method, path))


def _subjects(plan: ProofPlan, proof: Proof, refused: Mapping[tuple[str, str], str]) -> list[Archive]:
    """Sets what both serve and what only one does; returns the archives that could be read."""
    reference, ours = plan.reference.versions(), plan.ours.versions()
    archives: dict[str, Archive] = {}
    for url in dict.fromkeys(version.url for version in (*reference, *ours)):
        try:
            archives[url] = read_archive(url, plan.installation.store, plan.workdir)
        except MigrationError as error:  # noqa: PERF203 - one for each archive
            proof.remarks.append(f"The archive could not be read: {error}")
    proof.missing = list(_missing(reference, ours, refused))
    lacking = {_key(each.version) for each in proof.missing}
    proof.subjects = [Subject(v, archives.get(v.url)) for v in reference if _key(v) not in lacking]
    return list(archives.values())


def _key(version: ServedVersion) -> tuple[str, str]:
    return version.name, version.version


def _missing(
    reference: Sequence[ServedVersion], ours: Sequence[ServedVersion], refused: Mapping[tuple[str, str], str]
) -> Iterator[Missing]:
    """What only one of the servers has, or has a worker of that is ready."""
    here, there = {_key(version): version for version in ours}, set(map(_key, reference))
    for version in reference:
        mine = here.get(_key(version))
        if mine is None:
            yield Missing(version, "modelserver", refused.get(_key(version), _ABSENT))
        elif version.min_workers and not version.ready:
            yield Missing(version, "TorchServe", _NOT_READY)
        elif version.ready and not mine.ready:
            yield Missing(version, "modelserver", mine.failure or _NOT_READY)
    yield from (Missing(version, "TorchServe", _ABSENT) for version in ours if _key(version) not in there)


def compare(plan: ProofPlan, call: Probe) -> Compared:
    """Asks both; TorchServe again if its answer may not be the same each time."""
    reference, first = _timed(plan.reference, call)
    ours, second = _timed(plan.ours, call)
    times = (first * 1e3, second * 1e3)
    if not reference.status:
        return Compared(call, reference, ours, times, [f"no answer from TorchServe: {reference.reason}"])
    what = mismatches(reference, ours)
    if not what:
        return Compared(call, reference, ours, times)
    reasons = explain(call, reference, ours)
    if not reasons and not changes_state(call):
        again, _ = _timed(plan.reference, call)
        if mismatches(reference, again):
            reasons = [(VARIES,)]
    return Compared(call, reference, ours, times, what, reasons)


def _timed(server: ComparedServer, call: Probe) -> tuple[Response, float]:
    began = time.perf_counter()
    answer = server.ask(call)
    by_handler = call.port in {"inference", "grpc_inference"} and good(answer)
    return masked(answer, by_handler=by_handler), time.perf_counter() - began


def _good(proof: Proof) -> list[Probe]:
    """The predictions that both answered well."""
    return [
        each.call
        for each in proof.compared
        if each.call.method in {"POST", grpc_calls.METHOD}
        and each.reference.status == each.ours.status == 200
    ]


def _predicts(call: Probe, model: str) -> bool:
    """Whether it is a prediction of the model, whose name, and not only its beginning, is in the path."""
    if call.port == "grpc_inference":
        return parse_qs(call.path.partition("?")[2]).get("model_name") == [model]
    return (
        call.port == "inference"
        and re.search(rf"/{re.escape(quote(model, safe=''))}(?=[/:?]|$)", call.path) is not None
    )


def _measure(plan: ProofPlan, proof: Proof, listener: Progressing) -> None:
    """Each model with the first prediction that both answered well."""
    listener.stage("measuring")
    good = [call for call in _good(proof) if call.method == "POST"]
    for number, subject in enumerate(proof.subjects):
        version = subject.version
        mine = [call for call in good if _predicts(call, version.name)]
        if not mine or any(each.model == version.name for each in proof.measured):
            continue
        for server in (plan.reference, plan.ours):
            listener.trying(f"{version.name} of {server.name}", number / len(proof.subjects))
            alone, full = (_figure(server, mine[0], n, plan.seconds) for n in (1, clients_for(version)))
            proof.measured.append(LoadFigures(version.name, mine[0].name, server.name, alone, full))
            figures = f"{full.rate:.4g} requests/s, p50 {alone.p50_ms:.3g} ms alone"
            listener.line(f"{version.name}, {server.name}: {figures}")


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """A model under a request: one client alone, and enough clients to fill the batches of all workers."""

    model: str
    request: str
    server: str
    alone: Figure
    full: Figure


def clients_for(version: ServedVersion) -> int:
    """Two full batches for each worker: one is computed while the next waits."""
    return max(2, min(_MOST_CLIENTS, 2 * version.batch_size * max(1, version.ready)))


def _figure(server: ComparedServer, call: Probe, clients: int, seconds: float) -> Figure:
    host, port = server.addresses[call.port]
    load = LoadSpec([head_and_body(server, call)], port, seconds, _SETTLING * seconds, host=host)
    return summed_up(run_load(closed_loop(load, clients)), clients=clients)


def head_and_body(server: ComparedServer, call: Probe) -> bytes:
    """The bytes of the request, with the server's token."""
    host, port = server.addresses[call.port]
    lines = [f"{call.method} {call.path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in server.headers(call) if name.lower() != "host"]
    lines += [f"Content-Length: {len(call.body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + call.body
