"""A certificate, and its SSL context."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Seconds that a client has for the handshake, and for the closing handshake.
HANDSHAKE_TIMEOUT = 10.0
SHUTDOWN_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its private key in PEM.

    ``client_ca`` are the authorities for client certificates; if empty, clients need none.
    """

    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes = b""

    @classmethod
    def throwaway(cls, hosts: Iterable[str]) -> Certificate:
        """A self-signed one for these hosts and localhost. Raises ImportError without cryptography."""
        from modelserver.surface.tls.throwaway import self_signed  # noqa: PLC0415 - an optional package

        return cls(*self_signed(hosts))

    def server_context(self, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
        """A context for TLS 1.2 and later, and for these protocols of the application.

        Raises OSError, ValueError if the certificate cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with _as_file(self.key + b"\n" + self.chain) as path:
            # Without a password, OpenSSL would prompt for one.
            context.load_cert_chain(path, password=lambda: b"")
        context.set_alpn_protocols(protocols)
        if self.client_ca:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def server_arguments(self, protocols: Sequence[str] = ("http/1.1",)) -> dict[str, Any]:
        """The arguments for uvloop's servers; ``ssl`` is :meth:`server_context`."""
        return {
            "ssl": self.server_context(protocols),
            "ssl_handshake_timeout": HANDSHAKE_TIMEOUT,
            "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT,
        }

    def renew(self, context: ssl.SSLContext, protocols: Sequence[str] = ("http/1.1",)) -> None:
        """Has new connections of ``context`` use this certificate and its authorities.

        ``context`` itself is kept unchanged, as it would keep an old key of another type; whether clients
        need a certificate does not change. Raises OSError, ValueError if the certificate cannot be used; then
        nothing changes.
        """
        fresh = self.server_context(protocols)

        def switch(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = fresh

        context.sni_callback = switch


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A private file for OpenSSL, which only reads files; in memory if possible."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as named:
        named.write(content)
        named.flush()
        yield named.name
