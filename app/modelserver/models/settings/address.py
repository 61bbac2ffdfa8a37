"""Listener addresses: ``http[s]://host[:port]`` or ``unix:/path`` (reference 3.3).

Unlike in TorchServe, the host may be an IPv6 address in brackets.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import NamedTuple

_FORM = re.compile(
    r"(?P<scheme>https?)://(\[(?P<ipv6>[0-9a-f:.]+(%[\w.-]+)?)\]|(?P<host>[^:/\s\[\]]+))(?::(?P<port>[0-9]+))?"
    r"|unix:(?P<path>/.*)",
    re.I,
)
_PORT_LIMIT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A binding address; ``scheme`` is ``http``, ``https`` or ``unix``.

    A unix address has a ``path``, an empty ``host`` and port 0; the others have no path, and port 0 means any
    free port. An IPv6 ``host`` has no brackets, and is written in the shortest way.
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
        if match["ipv6"] is None:
            return cls(scheme, match["host"], port)
        try:
            return cls(scheme, str(ipaddress.IPv6Address(match["ipv6"])), port)
        except ValueError:
            raise ValueError(f"Invalid binding address: {text}") from None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; host names other than ``localhost`` are not resolved."""
        if self.scheme == "unix" or self.host.lower() == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        mapped: ipaddress.IPv4Address | None = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class HostPort(NamedTuple):
    """A host and a port of it."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """From ``host:port``; IPv6 hosts are in brackets. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text}: host:port is needed")
        return cls(host.strip("[]"), _port(port, text))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; host names other than ``localhost`` are not resolved."""
        return Address("http", self.host).is_loopback

    def bind(self) -> socket.socket:
        """A bound socket that does not listen yet; one for ``::`` also accepts IPv4. Raises OSError."""
        is_ipv6 = ":" in self.host
        bound = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_ipv6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                # Resolved for the number of the interface that a scope (`%eth0`) names.
                bound.bind(socket.getaddrinfo(*self, socket.AF_INET6, socket.SOCK_STREAM)[0][4])
            else:
                bound.bind(self)
        except OSError:
            bound.close()
            raise
        return bound


def _port(digits: str, address: str) -> int:
    if len(digits.lstrip("0")) > len(str(_PORT_LIMIT)) or int(digits) >= _PORT_LIMIT:
        raise ValueError(f"Invalid port number: {address}")
    return int(digits)
