import contextlib
import ssl
from pathlib import Path

import pytest
from tests.surface.tls.certificates import Authority

from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

HTTPS = Address("https", "127.0.0.1", 8443)


def settings(**configured) -> Settings:
    return Settings(inference_address=HTTPS, **configured)


def pair(key: Path, chain: Path) -> Settings:
    return settings(private_key_file=key, certificate_file=chain)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection in memory, the server's first, after their handshake."""
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
            return ours, other
    raise AssertionError("no agreement")


def talk(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """The protocol that both agree on."""
    return shaken(server, client)[0].version()


def subject(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost") -> str:
    """That of the certificate which a client sees, after a word of the server's."""
    ours, other = shaken(server, client, name)
    ours.write(b"x")
    assert other.read(1) == b"x"
    assert ours.selected_alpn_protocol() in (None, "http/1.1")
    certificate = other.getpeercert()
    return str(dict(pair for entry in certificate["subject"] for pair in entry)["commonName"])


def made(authority: Authority, name: str, client_ca: bytes = b"", *, old_form: bool = False) -> Certificate:
    key, chain = authority.issue(name, old_form=old_form)
    return Certificate(chain.read_bytes(), key.read_bytes(), client_ca)
