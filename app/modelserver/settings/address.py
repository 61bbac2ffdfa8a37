"""Listener addresses: ``http[s]://host[:port]`` or ``unix:/path`` (reference 3.3)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_FORM = re.compile(r"(?P<scheme>https?)://(?P<host>[^:/\s]+)(?::(?P<port>[0-9]+))?|unix:(?P<path>/.*)", re.I)
_PORT_LIMIT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A binding address; ``scheme`` is ``http``, ``https`` or ``unix``.

    A unix address has a ``path``, an empty ``host`` and port 0; the others have no path, and port 0 means any
    free port.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str, *, http_port: int = 80, https_port: int = 443) -> Address:
        """Parses an address with default ports. Raises ValueError with TorchServe's message."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"Invalid binding address: {text}")
        if match["path"]:
            return cls("unix", path=match["path"])
        scheme = match["scheme"].lower()
        default_port = http_port if scheme == "http" else https_port
        port = default_port if match["port"] is None else _port(match["port"], text)
        return cls(scheme, match["host"], port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; host names other than ``localhost`` are not resolved."""
        if self.scheme == "unix" or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.scheme == "unix" else f"{self.scheme}://{self.host}:{self.port}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """A host and a port from ``host:port``; IPv6 hosts are in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text}: host:port is needed")
    return host.strip("[]"), _port(port, text)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host; other names than ``localhost`` are not resolved."""
    return Address("http", host).is_loopback


def _port(digits: str, address: str) -> int:
    if len(digits.lstrip("0")) > len(str(_PORT_LIMIT)) or int(digits) >= _PORT_LIMIT:
        raise ValueError(f"Invalid port number: {address}")
    return int(digits)
