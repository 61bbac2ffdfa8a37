import ssl
import sys

import pytest
from tests.surface.tls.conftest import pair, settings, talk

from modelserver.errors import ConfigError
from modelserver.ext.tls.certificate import load_certificate
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

pytest.importorskip("cryptography")


@pytest.mark.parametrize("kind", ["PKCS8", "older form", "keystore"])
def test_files_of_each_kind_are_used(authority, kind):
    """Clients can verify what stands in PEM files and in a PKCS12 file with the certificates between."""
    assert settings().uses_tls
    assert not Settings().uses_tls
    pem = pair(*authority.issue("pem", old_form=kind == "older form"))
    configured = settings(keystore=authority.keystore("store")) if kind == "keystore" else pem
    certificate = load_certificate(configured)
    client = ssl.create_default_context(cafile=str(authority.file))

    assert talk(certificate.server_context(), client) == "TLSv1.3"
    assert certificate.chain.count(b"BEGIN CERTIFICATE") == (2 if kind == "keystore" else 1)


def test_certificate_is_made_without_any_file(authority):
    """Without any file one is made for the hosts of the addresses; nobody can verify it (reference 3.3)."""
    certificate = load_certificate(settings())
    trusting = ssl.create_default_context(cadata=certificate.chain.decode())
    assert talk(certificate.server_context(), trusting) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(certificate.server_context(), ssl.create_default_context(cafile=str(authority.file)))


def refusal(configured):
    with pytest.raises(ConfigError) as caught:
        load_certificate(configured)
    (line,) = str(caught.value).splitlines()
    return line


def test_wrong_files_are_named(authority, tmp_path):
    """What cannot be used stops the start with a line that says what and why (F66)."""
    key, chain = authority.issue("right")
    other, _ = authority.issue("other")
    text = tmp_path / "text.pem"
    text.write_text("hello")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")

    assert refusal(pair(text, chain)).endswith(f"private_key_file={text}: a private key in PEM is needed")
    assert refusal(pair(key, text)).endswith(f"certificate_file={text}: certificates in PEM are needed")
    assert "key values mismatch" in refusal(pair(other, chain))
    assert f"certificate_file={broken}" in refusal(pair(key, broken))
    assert "cannot be read (No such file or directory)" in refusal(pair(tmp_path / "nope", chain))
    assert "the key has a password" in refusal(pair(*authority.locked_key("locked")))
    configured = settings(private_key_file=key, certificate_file=chain, tls_client_ca_file=text)
    assert refusal(configured).startswith(f"Invalid configuration: tls_client_ca_file={text}: cannot be used")


def test_wrong_keystores_are_named(authority, tmp_path):
    store = authority.keystore("locked-store", "another-password")
    java = tmp_path / "store.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")

    message = refusal(settings(keystore=store, keystore_pass="wrong-password"))
    assert message.endswith("not a PKCS12 file, or keystore_pass is wrong")
    assert "wrong-password" not in message
    assert f"keytool -importkeystore -srckeystore {java} " in refusal(settings(keystore=java))
    assert "keystore_type=JKS: only PKCS12 can be read" in refusal(settings(keystore_type="JKS"))


@pytest.mark.parametrize("name", ["private_key_file", "certificate_file"])
def test_half_a_pair_is_refused(tmp_path, name):
    """A key without a certificate, or the other way round, is named (F66)."""
    missing = ({"private_key_file", "certificate_file"} - {name}).pop()
    assert f"configuration: {missing}=: " in refusal(settings(**{name: tmp_path / "file.pem"}))


def test_missing_package_is_named(authority, monkeypatch):
    for name in ("ext.tls.keystore", "surface.tls.throwaway"):
        monkeypatch.setitem(sys.modules, f"modelserver.{name}", None)

    assert load_certificate(pair(*authority.issue("plain"))).key
    assert "pip install cryptography" in refusal(settings())
    assert "pip install cryptography" in refusal(settings(keystore=authority.keystore("needs")))


def test_keys_do_not_print_themselves():
    """A key in a message or log would be one that all can read (F68)."""
    assert "secret" not in repr(Certificate(b"chain", b"secret"))
