"""A certificate, and what asyncio makes of it."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cryptography")

from tests.tls.certificates import Authority

from modelserver.settings.address import Address
from modelserver.settings.settings import Settings
from modelserver.tls.certificate import load_certificate
from modelserver.tls.context import Certificate, renew, server_context

if TYPE_CHECKING:
    from pathlib import Path


HTTPS = Address("https", "127.0.0.1", 8443)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def settings(**given: Any) -> Settings:
    return Settings(inference_address=HTTPS, **given)


def pair(key: Path, chain: Path) -> Settings:
    return settings(private_key_file=key, certificate_file=chain)


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
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        if all([has_shaken_hands(theirs), has_shaken_hands(ours)]):
            return ours.version()
    raise AssertionError("no agreement")


def test_old_protocols_are_refused(authority: Authority) -> None:
    """TLS 1.2 is the oldest that is spoken (F66)."""
    context = server_context(load_certificate(pair(*authority.issue("old"))))

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    client = ssl.create_default_context(cafile=str(authority.file))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert talk(context, client) == "TLSv1.2"


def test_clients_may_be_asked_for_a_certificate(authority: Authority) -> None:
    """With authorities for clients, one without a certificate of theirs is refused (F66)."""
    key, chain = authority.issue("asking")
    given = settings(private_key_file=key, certificate_file=chain, tls_client_ca_file=authority.file)
    context = server_context(load_certificate(given))
    client = ssl.create_default_context(cafile=str(authority.file))
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises(ssl.SSLError):
        talk(context, client)
    client_key, client_chain = authority.issue("client")
    client.load_cert_chain(client_chain, client_key)
    assert talk(context, client) == "TLSv1.2"


def shown(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost") -> Any:
    """The certificate that a client sees, after a handshake in memory and a word each way."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done.add(side)
        if len(done) == 2:
            ours.write(b"x")
            assert theirs.read(1) == b"x"
            assert ours.selected_alpn_protocol() in (None, "http/1.1")
            return theirs.getpeercert()
    raise AssertionError("no agreement")


def subject(certificate: Any) -> str:
    return str(dict(pair for entry in certificate["subject"] for pair in entry)["commonName"])


def made(authority: Authority, name: str, client_ca: bytes = b"", *, old_form: bool = False) -> Certificate:
    key, chain = authority.issue(name, old_form=old_form)
    return Certificate(chain.read_bytes(), key.read_bytes(), client_ca)


@pytest.mark.parametrize("name", ["localhost", None])
def test_a_renewed_context(authority: Authority, name: str | None) -> None:
    """Connections from then on see the new certificate, whether they name a host or not, of whatever key."""
    client = ssl.create_default_context(cafile=str(authority.file))
    client.check_hostname = name is not None
    server = server_context(made(authority, "old", old_form=True))
    assert subject(shown(server, client, name)) == "old"
    renew(server, made(authority, "new"))
    assert subject(shown(server, client, name)) == "new"
    renew(server, made(authority, "newest", old_form=True))

    assert subject(shown(server, client, name)) == "newest"


def test_renewed_authorities(authority: Authority, tmp_path: Path) -> None:
    """Clients are held to the new authorities alone."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    server = server_context(made(authority, "server", authority.file.read_bytes()))
    contexts = []
    for issuer in (authority, other):
        client = ssl.create_default_context(cafile=str(authority.file))
        key, chain = issuer.issue("client")
        client.load_cert_chain(chain, key)
        contexts.append(client)
    assert shown(server, contexts[0])
    with pytest.raises(ssl.SSLError):
        shown(server, contexts[1])
    renew(server, made(authority, "server", other.file.read_bytes()))

    assert shown(server, contexts[1])
    with pytest.raises(ssl.SSLError):
        shown(server, contexts[0])
