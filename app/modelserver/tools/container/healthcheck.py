"""``python -m modelserver.tools.container.healthcheck``: whether this server is ready, for ``HEALTHCHECK``.

The server writes its inference address into a file. This requests ``/v2/health/ready`` there, which never
needs a token. If clients need certificates, a finished handshake is enough, as it has none. It runs every few
seconds, and therefore imports little.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from modelserver.run.pidfile import address_file

ROUTE: Final = "/v2/health/ready"
TIMEOUT: Final = 4.0  # seconds, for each step

_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked, not bound
_MOST_READ = 4096


def main() -> int:
    """0 if the server is ready; else 1, with the reason on standard output."""
    try:
        answered = ask(json.loads(address_file().read_text("utf-8")))
    except FileNotFoundError:
        answered = "modelserver is not currently running."
    except (OSError, ValueError, KeyError) as error:
        answered = str(error) or type(error).__name__
    print(answered)
    return 0 if answered == "ready" else 1


def ask(addresses: Mapping[str, Any]) -> str:
    """``ready``, or what is wrong with the server that told this of itself.

    Raises OSError if there is no answer, KeyError and ValueError if this is no address.
    """
    scheme, place = addresses["inference"].split(":", 1)
    with connect(scheme, place) as connection:
        if scheme == "https" and addresses["asks_for_certificates"]:
            return "ready"
        request = f"GET {ROUTE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode("ascii"))
        status = connection.recv(_MOST_READ).partition(b"\r\n")[0].split(b" ")[1:2]
        if not status:
            return f"{ROUTE} is not answered"
        return "ready" if status == [b"200"] else f"{ROUTE} answers {status[0].decode('ascii', 'replace')}"


def connect(scheme: str, place: str) -> socket.socket:
    """A connection to the address, which is in this container: certificates are not verified."""
    if scheme == "unix":
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(TIMEOUT)
        plain.connect(place)
        return plain
    host, _, port = place.removeprefix("//").rpartition(":")
    host = host.strip("[]")
    plain = socket.create_connection((_EVERY_INTERFACE.get(host, host), int(port)), TIMEOUT)
    if scheme != "https":
        return plain
    import ssl  # noqa: PLC0415 - needed by few

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)


if __name__ == "__main__":
    sys.exit(main())
