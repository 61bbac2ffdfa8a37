"""``modelserver status``: reads the management API of a running server, and says what is wrong."""

from __future__ import annotations

import argparse
import socket
import ssl
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx

from modelserver.errors import ConfigError
from modelserver.surface.auth.scopes import Scope
from modelserver.tools.commands import exit_status
from modelserver.tools.running_server import RunningServer, client_of, management_url, token, trusting
from modelserver.tools.status.troubles import (
    FAILS,
    Trouble,
    event_lines,
    of_certificate,
    of_events,
    of_model,
    of_parking,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    add = parser.add_argument
    add("--management", metavar="URL", help="the server's management address (default: as configured)")
    add("--ts-config", metavar="FILE", type=Path, help="the server's configuration file")
    add("--token-file", metavar="FILE", type=Path, help="a file with the management token")
    add("--ca-file", metavar="FILE", help="certificate authorities (PEM) for an https address")
    return parser


def status(options: argparse.Namespace) -> int:
    """Prints what is wrong. Raises ConfigError and Unreachable."""
    running = RunningServer.detect() if options.management is None and options.ts_config is None else None
    url = options.management or management_url(options.ts_config, running)
    key = token(Scope.MANAGEMENT, options.token_file, url, running, is_its=running is not None)
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
    print(f"{url}: {_counted(len(names))}, {'all well' if not failing else _fail(len(failing))}")
    for trouble in sorted(troubles, key=lambda each: each.level != FAILS):
        print(f"\n{trouble}")
    if lines := event_lines(events):
        print("\nIn the last hour", *lines, sep="\n")
    return 1 if failing else 0


def _counted(models: int) -> str:
    return "1 model" if models == 1 else f"{models} models"


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
        raise Unreachable(f"{client.base_url} cannot be reached: {error}") from error


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
