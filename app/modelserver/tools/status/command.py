"""``modelserver status``: reads the management API of a running server, and says what is wrong."""

from __future__ import annotations

import argparse
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from modelserver.errors import ConfigError
from modelserver.tools.commands import counted, exit_status
from modelserver.tools.running_server import add_flags, client_of, management, trusting

Document = Mapping[str, Any]

# What is wrong, by the documents of the management API, each with its paragraph of the runbook.

# Levels: it fails now, or somebody should look soon.
FAILS, LOOK = "FAILS", "LOOK"
# Days before its end, a certificate is told of; and fails.
CERTIFICATE_DAYS: Final = 14
_CERTIFICATE_LATE: Final = 2
# Lines of events at most.
_EVENTS: Final = 20
_LONGEST: Final = 200
_UNTRUSTED: Final = "; --ca-file names the file of its certificate, or of the authority that signed it"


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
    """Yields the troubles of one version, from its description. ``since``: only newer errors are reported."""
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


_PAGE = 1000
_HOUR = timedelta(hours=1)


class Unreachable(Exception):
    """The server does not answer as one; says why."""


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if nothing fails, 1 if something does, 2 if the server cannot be reached or for a bad command
    line.
    """
    options = build_parser().parse_args(arguments)
    return exit_status(
        lambda: status(options), dict.fromkeys((ConfigError, Unreachable, httpx.InvalidURL, OSError), 2)
    )


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver status",
        description="Says what is wrong with a running server, the worst first. Exit status: 0 if nothing "
        "fails, 1 if something does, 2 if the server cannot be reached.",
    )
    add_flags(parser)
    return parser


def status(options: argparse.Namespace) -> int:
    """Prints what is wrong. Raises ConfigError and Unreachable."""
    url, key = management(options)
    since = (datetime.now(timezone.utc) - _HOUR).strftime("%Y-%m-%dT%H:%M:%S")
    troubles: list[Trouble] = []
    with client_of(url, key, options.ca_file) as client:
        parking = _read(client, "/parking")
        names = list(_names(client))
        for name in names:
            for version in _read(client, f"/models/{quote(name, safe='')}/all"):
                troubles += of_model(version, since)
        events = _read(client, f"/events?level=warn&since={since}&limit={_PAGE}").get("events", [])
    troubles += of_events(events)
    if "budget" in parking:
        troubles += of_parking(parking)
    if urlsplit(url).scheme == "https":
        troubles += of_certificate(_days_left(url, options.ca_file))
    failing = {each.subject for each in troubles if each.level == FAILS}
    print(f"{url}: {counted(len(names), 'model')}, {'all well' if not failing else _fail(len(failing))}")
    for trouble in sorted(troubles, key=lambda each: each.level != FAILS):
        print(f"\n{trouble}")
    if lines := event_lines(events):
        print("\nIn the last hour", *lines, sep="\n")
    return 1 if failing else 0


def _fail(count: int) -> str:
    return "1 thing fails" if count == 1 else f"{count} things fail"


def _names(client: httpx.Client) -> Iterator[str]:
    """The names of all models, page by page."""
    place = "0"
    while place:
        page = _read(client, f"/models?limit={_PAGE}&next_page_token={place}")
        yield from dict.fromkeys(model["modelName"] for model in page["models"])
        place = page.get("nextPageToken", "")


def _read(client: httpx.Client, path: str) -> Any:
    """A document; an empty one if there is none at this path. Raises Unreachable."""
    try:
        answer = client.get(path)
        if answer.status_code == 404:
            return {}
        answer.raise_for_status()
        return answer.json()
    except httpx.HTTPStatusError as error:
        text = " ".join(error.response.text.split())[:200]
        raise Unreachable(f"{error.request.url} answers {error.response.status_code}: {text}") from error
    except (httpx.HTTPError, ValueError) as error:
        hint = _UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
        raise Unreachable(f"{client.base_url} cannot be reached: {error}{hint}") from error


def _days_left(url: str, ca_file: str | None) -> float:
    """Until the end of the certificate that the server has now."""
    place = urlsplit(url)
    address = place.hostname or "", place.port or 443
    with (
        socket.create_connection(address, timeout=10) as connection,
        trusting(ca_file).wrap_socket(connection, server_hostname=address[0]) as secured,
    ):
        certificate = secured.getpeercert() or {}
    return (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / 86400
