import ssl

import pytest
from tests.surface.tls.certificates import Authority
from tests.surface.tls.conftest import made, pair, settings, subject, talk

from modelserver.ext.tls.certificate import load_certificate

pytest.importorskip("cryptography")


def test_old_protocols_are_refused(authority):
    """TLS 1.2 is the oldest that is spoken (F66)."""
    context = load_certificate(pair(*authority.issue("old"))).server_context()

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    client = ssl.create_default_context(cafile=str(authority.file))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert talk(context, client) == "TLSv1.2"


def test_clients_may_need_a_certificate(authority):
    """With authorities for clients, one without a certificate of theirs is refused (F66)."""
    key, chain = authority.issue("asking")
    configured = settings(private_key_file=key, certificate_file=chain, tls_client_ca_file=authority.file)
    context = load_certificate(configured).server_context()
    client = ssl.create_default_context(cafile=str(authority.file))
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises(ssl.SSLError):
        talk(context, client)
    client_key, client_chain = authority.issue("client")
    client.load_cert_chain(client_chain, client_key)
    assert talk(context, client) == "TLSv1.2"


@pytest.mark.parametrize("name", ["localhost", None])
def test_a_renewed_context_has_the_new_certificate(authority, name):
    client = ssl.create_default_context(cafile=str(authority.file))
    client.check_hostname = name is not None
    server = made(authority, "old", old_form=True).server_context()
    assert subject(server, client, name) == "old"
    made(authority, "new").renew(server)
    assert subject(server, client, name) == "new"
    made(authority, "newest", old_form=True).renew(server)

    assert subject(server, client, name) == "newest"


def test_renewed_authorities_decide_at_once(authority, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    server = made(authority, "server", authority.file.read_bytes()).server_context()
    contexts = []
    for issuer in (authority, other):
        client = ssl.create_default_context(cafile=str(authority.file))
        key, chain = issuer.issue("client")
        client.load_cert_chain(chain, key)
        contexts.append(client)
    assert subject(server, contexts[0])
    with pytest.raises(ssl.SSLError):
        subject(server, contexts[1])
    made(authority, "server", other.file.read_bytes()).renew(server)

    assert subject(server, contexts[1])
    with pytest.raises(ssl.SSLError):
        subject(server, contexts[0])
