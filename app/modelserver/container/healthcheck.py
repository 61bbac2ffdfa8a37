"""``python -m modelserver.container.healthcheck``: whether this server is ready, for ``HEALTHCHECK``.

It finds the server by its PID file, and its inference address as the server does: by flags, environment and
configuration file. It requests ``/v2/health/ready``, which never needs a token. If clients need certificates,
a finished handshake is enough, as it has none.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from modelserver.cli import build_parser, setting_flags
from modelserver.errors import ConfigError
from modelserver.pidfile import MARKER, is_server, pid_file, read_pid
from modelserver.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.settings.address import Address
    from modelserver.settings.settings import Settings

ROUTE: Final = "/v2/health/ready"
TIMEOUT: Final = 4.0  # seconds, for each step

_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - asked, not bound


def main() -> int:
    """0 if the server is ready; else 1, with the reason on standard output."""
    try:
        answered = ask(settings_of(server_command()))
    except (OSError, http.client.HTTPException, ConfigError, psutil.Error) as error:
        answered = str(error) or type(error).__name__
    print(answered)
    return 0 if answered == "ready" else 1


def server_command() -> list[str]:
    """The command line of the server that the PID file names. Raises ConfigError if there is none."""
    pid = read_pid(pid_file())
    if pid is None or not is_server(pid):
        raise ConfigError("modelserver is not currently running.")
    return psutil.Process(pid).cmdline()


def settings_of(command: Sequence[str]) -> Settings:
    """The settings of a server with this command line, in this environment and directory."""
    flags = next((command[i + 1 :] for i, part in enumerate(command) if Path(part).name == MARKER), [])
    options, _ = build_parser().parse_known_args(flags)
    return load_settings(setting_flags(options), os.environ, Path.cwd()).settings


def ask(settings: Settings) -> str:
    """``ready``, or what is wrong. Raises OSError and HTTPException if there is no answer."""
    address = settings.inference_address
    with connect(address) as connection:
        if address.scheme == "https" and settings.tls_client_ca_file is not None:
            return "ready"
        request = f"GET {ROUTE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode("ascii"))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return "ready" if answer.status == 200 else f"{ROUTE} answers {answer.status}"


def connect(address: Address) -> socket.socket:
    """A connection to the address, which is in this container: certificates are not verified."""
    if address.scheme == "unix":
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(TIMEOUT)
        plain.connect(address.path)
        return plain
    host = "127.0.0.1" if address.host == _EVERY_INTERFACE else address.host
    plain = socket.create_connection((host, address.port), TIMEOUT)
    if address.scheme != "https":
        return plain
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)


if __name__ == "__main__":
    sys.exit(main())
