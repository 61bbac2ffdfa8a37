"""A certificate, and what asyncio makes of it."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Seconds that a client has for the handshake, and to agree to the end of the connection.
HANDSHAKE_TIMEOUT = 10.0
SHUTDOWN_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a listener shows, in PEM: the chain and its private key.

    ``client_ca`` are the authorities of clients' certificates; empty: clients need none.
    """

    chain: bytes
    key: bytes = field(repr=False)
    client_ca: bytes = b""


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Speaks TLS 1.2 and later.

    Raises:
        OSError, ValueError: the certificate cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with _as_file(certificate.key + b"\n" + certificate.chain) as path:
        # Without a password of ours OpenSSL would ask for one at the terminal.
        context.load_cert_chain(path, password=lambda: b"")
    context.set_alpn_protocols(["http/1.1"])
    if certificate.client_ca:
        context.load_verify_locations(cadata=certificate.client_ca.decode("ascii"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def renew(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Shows the certificate to connections from now on, and holds their clients to its authorities.

    ``context`` stays the one that servers were given. Nothing is changed in it: of keys of two kinds it would
    keep both. Whether clients must have a certificate stays as it was.

    Raises:
        OSError, ValueError: the certificate cannot be used; all is as before.
    """
    fresh = server_context(certificate)

    def switch(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = fresh

    context.sni_callback = switch


def tls_arguments(context: ssl.SSLContext | None) -> dict[str, Any]:
    """What uvloop's servers are told beside the context; nothing where there is none."""
    if context is None:
        return {}
    return {
        "ssl": context,
        "ssl_handshake_timeout": HANDSHAKE_TIMEOUT,
        "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT,
    }


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path for OpenSSL, which reads files only: in memory where the system can, for nobody else."""
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
