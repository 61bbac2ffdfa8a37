"""What is wrong, by the documents of the management API, each with its paragraph of the runbook."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Document = Mapping[str, Any]

# Levels: it fails now, or somebody should look soon.
FAILS, LOOK = "FAILS", "LOOK"
# Days before its end, a certificate is told of; and fails.
CERTIFICATE_DAYS: Final = 14
_CERTIFICATE_LATE: Final = 2
# Lines of events at most.
_EVENTS: Final = 20
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Trouble:
    """``subject`` is a model and version, or a part of the server; ``anchor`` that of the runbook."""

    level: str
    subject: str
    text: str
    anchor: str

    def __str__(self) -> str:
        text = f"{self.level:5}  {self.subject}: {_short(self.text)}"
        return f"{text}\n       runbook.md#{self.anchor}"


def of_model(version: Document, since: str) -> Iterator[Trouble]:
    """Those of one version, by its description. ``since``: errors are told of if they are newer."""
    subject = f"{version['modelName']} {version['modelVersion']}"
    if version.get("status") == "FAILED":
        yield Trouble(FAILS, subject, f"not restored: {version.get('failure')}", "not-restored")
        return
    yield from _of_errors(subject, version.get("errors") or {}, since)
    yield from _of_workers(subject, version)
    queue = version.get("jobQueueStatus") or {}
    if queue.get("remainingCapacity", 1) <= 0:
        text = f"the queue is full: {queue['pendingRequests']} requests wait"
        yield Trouble(FAILS, subject, text, "modelserverrefuses")
    parking = version.get("parking") or {}
    if parking.get("state") == "failed":
        text = f"it cannot be loaded: {parking.get('failure')}"
        yield Trouble(FAILS, subject, text, "cannot-load-on-demand")
    replacement = version.get("replacement") or {}
    if replacement.get("failure"):
        text = f"not replaced by {replacement['modelUrl']}: {replacement['failure']}"
        yield Trouble(LOOK, subject, text, "not-replaced")


def _of_errors(subject: str, errors: Document, since: str) -> Iterator[Trouble]:
    last = errors.get("last") or {}
    text = f"{last.get('status')} {last.get('type')}: {last.get('message')}"
    if errors.get("failing"):
        yield Trouble(FAILS, subject, f"all of the last batches failed: {text}", "modelserverfailing")
    elif last and last["time"] >= since:
        yield Trouble(LOOK, subject, f"{errors['count']} errors, the last {text}", "last-errors")


def _of_workers(subject: str, version: Document) -> Iterator[Trouble]:
    workers = version.get("workers") or []
    ready = sum(worker["status"] == "READY" for worker in workers)
    reasons = [worker["failure"] for worker in workers if worker.get("failure")]
    reason = f": {reasons[0]}" if reasons else ""
    least = version.get("minWorkers", 0)
    if least > 0 and not ready:
        yield Trouble(FAILS, subject, f"no worker is loaded{reason}", "modelservernoworker")
    elif reasons:
        text = f"{len(reasons)} of {len(workers)} workers do not work{reason}"
        yield Trouble(FAILS, subject, text, "modelserverworkersfail")
    wish = (version.get("autoscaling") or {}).get("wish", 0)
    if ready and wish > ready:
        text = f"autoscaling wants {wish} workers, {ready} are ready"
        yield Trouble(LOOK, subject, text, "modelserverwantsworkers")


def of_parking(parking: Document) -> Iterator[Trouble]:
    """That of the models on demand together."""
    used, budget = parking["used"], parking["budget"]
    if used > budget:
        text = f"they have {used / 1e6:,.0f} MB, and may have {budget / 1e6:,.0f} MB"
        yield Trouble(LOOK, "models on demand", text, "modelservermemory")


def of_certificate(days: float) -> Iterator[Trouble]:
    """``days``: until the end of the management address's certificate."""
    if days < CERTIFICATE_DAYS:
        level = FAILS if days < _CERTIFICATE_LATE else LOOK
        text = f"it ends in {days:.0f} days" if days > 0 else "it has ended"
        yield Trouble(level, "certificate", text, "certificate")


def of_events(events: Iterable[Document]) -> Iterator[Trouble]:
    """What the events of the last hour tell of the machine."""
    disks = [event["message"] for event in events if event["kind"] == "disk_full"]
    if disks:
        yield Trouble(FAILS, "disk", disks[-1], "modelserverdisk")


def event_lines(events: Sequence[Document]) -> list[str]:
    """A line for each kind of event of a model, with the last of its messages and how often it came; the
    newest first.
    """
    count: Counter[tuple[str, ...]] = Counter()
    last: dict[tuple[str, ...], Document] = {}
    for event in events:
        key = tuple(event.get(name, "") for name in ("level", "model", "version", "kind"))
        count[key] += 1
        last.pop(key, None)
        last[key] = event
    lines = []
    for (level, model, version, kind), event in reversed(last.items()):
        times = count[level, model, version, kind]
        subject = " ".join(part for part in (model, version, kind) if part)
        more = f" ×{times}" if times > 1 else ""
        time = event["time"][:16].replace("T", " ")
        lines.append(f"  {time}  {level:5}  {subject}{more}: {_short(event['message'])}")
    left = len(lines) - _EVENTS
    return [*lines[:_EVENTS], *([f"  and {left} kinds more: GET /events?level=warn"] if left > 0 else [])]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
