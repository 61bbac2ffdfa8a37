"""What tests of this folder share."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from tests.surface.tls.certificates import Authority

from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

if TYPE_CHECKING:
    from pathlib import Path

HTTPS = Address("https", "127.0.0.1", 8443)


def settings(**configured: Any) -> Settings:
    return Settings(inference_address=HTTPS, **configured)


def pair(key: Path, chain: Path) -> Settings:
    return settings(private_key_file=key, certificate_file=chain)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def has_shaken_hands(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def talk(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """The protocol that both agree on, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        if all([has_shaken_hands(other), has_shaken_hands(ours)]):
            return ours.version()
    raise AssertionError("no agreement")


def certificate_seen(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost") -> Any:
    """The certificate that a client sees, after a handshake in memory and a word each way."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (other, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done.add(side)
        if len(done) == 2:
            ours.write(b"x")
            assert other.read(1) == b"x"
            assert ours.selected_alpn_protocol() in (None, "http/1.1")
            return other.getpeercert()
    raise AssertionError("no agreement")


def made(authority: Authority, name: str, client_ca: bytes = b"", *, old_form: bool = False) -> Certificate:
    key, chain = authority.issue(name, old_form=old_form)
    return Certificate(chain.read_bytes(), key.read_bytes(), client_ca)
