"""Finds the running server: its management address and token; and a client for it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import psutil

from modelserver.errors import ConfigError
from modelserver.ext.tokens.operator_tokens import read_token_file
from modelserver.models.settings.load import load_settings
from modelserver.run.pidfile import pid_file, running_server
from modelserver.surface.auth.scopes import KEY_FILE, Scope

if TYPE_CHECKING:
    import argparse

_TIMEOUT = 10.0  # seconds without a sign of life from the server
_UNIX = "unix:"
_CONFIG_FLAG = "--ts-config"
# None is the host of a unix address; a server on all interfaces has 0.0.0.0 in its configuration.
_HERE = frozenset({None, "localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - asked, not bound


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where the server of the pid file was started, and with which configuration file."""

    folder: Path
    config: Path | None

    @classmethod
    def detect(cls) -> RunningServer | None:
        """None if there is none, or it belongs to somebody else."""
        pid = running_server(pid_file())
        if pid is None:
            return None
        try:
            process = psutil.Process(pid)
            folder, line = Path(process.cwd()), process.cmdline()
        except psutil.Error:
            return None
        named = next((after for flag, after in pairwise(line) if flag == _CONFIG_FLAG), None)
        return cls(folder, None if named is None else folder / named)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Where the server is, for :func:`management`."""
    add = parser.add_argument
    add("--management", metavar="URL", help="the server's management address (default: as configured)")
    add("--ts-config", metavar="FILE", type=Path, help="the server's configuration file")
    add("--token-file", metavar="FILE", type=Path, help="a file with the management token")
    add("--ca-file", metavar="FILE", help="certificate authorities (PEM) for an https address")


def management(flags: argparse.Namespace) -> tuple[str, str | None]:
    """The management address and its token, by these flags or of the running server. Raises ConfigError."""
    running = RunningServer.detect() if flags.management is None and flags.ts_config is None else None
    url = flags.management or management_url(flags.ts_config, running)
    return url, token(Scope.MANAGEMENT, flags.token_file, url, running, is_its=running is not None)


def management_url(config: Path | None, running: RunningServer | None) -> str:
    """The management address in this configuration file, or that of the running server.

    Raises ConfigError for an invalid configuration.
    """
    config = config or (None if running is None else running.config)
    folder = Path.cwd() if running is None else running.folder
    flags: dict[str, object] = {} if config is None else {"ts_config": str(config)}
    return str(load_settings(flags, os.environ, folder).settings.management_address)


def token(
    scope: Scope, file: Path | None, url: str, running: RunningServer | None, *, is_its: bool = False
) -> str | None:
    """The token for the server at ``url``: from the file, the environment or, if that is on this machine, the
    key file of the running server or this folder. ``is_its``: the URL is the running server's.

    Raises ConfigError if ``file`` has no tokens.
    """
    if file is None:
        if tokens := os.environ.get(scope.variable, "").replace(",", " ").split():
            return tokens[0]
        folders = [Path.cwd()] if running is None else [running.folder, Path.cwd()]
        files = [folder / KEY_FILE for folder in folders if (folder / KEY_FILE).is_file()]
        if not files or not (is_its or urlsplit(url).hostname in _HERE):
            return None
        file = files[0]
    return next(iter(read_token_file(file).get(scope, ())), None)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """For connections to servers whose certificates these authorities have signed, or the system's.

    Raises ConfigError for an unusable file.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file={ca_file}: {error}") from error


def client_of(url: str, key: str | None, ca_file: str | None) -> httpx.Client:
    """A client of the management address. Raises ConfigError for an unusable file of authorities."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    uds = url.removeprefix(_UNIX) if url.startswith(_UNIX) else None
    return httpx.Client(
        base_url="http://localhost" if uds else url,
        headers=headers,
        timeout=_TIMEOUT,
        transport=httpx.HTTPTransport(verify=trusting(ca_file), uds=uds, trust_env=False),
    )
