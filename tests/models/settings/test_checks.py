"""What several settings must agree on."""

import pytest
from tests.models.settings.conftest import load, refusal_of


def test_tls_settings_must_fit(tmp_path):
    """JKS cannot be read without Java, and the message says what to do."""
    message = refusal_of(tmp_path, "inference_address=https://127.0.0.1:8443\nkeystore_type=JKS")
    assert message.startswith("Invalid configuration: keystore_type=JKS: only PKCS12 can be read")

    text = "inference_address=https://127.0.0.1:8080\nmanagement_address=http://127.0.0.1:8080"
    message = refusal_of(tmp_path, text)
    assert message == (
        "Invalid configuration: management_address=http://127.0.0.1:8080: "
        "inference_address has the same host and port over https"
    )


@pytest.mark.parametrize("source", ["private_key_file", "certificate_file"])
def test_half_a_pair_is_refused(tmp_path, source):
    """A key without a certificate, or the other way round, is named (F66)."""
    (tmp_path / "file.pem").write_text("")
    missing = ({"private_key_file", "certificate_file"} - {source}).pop()
    text = f"management_address=https://127.0.0.1:8444\n{source}=file.pem"
    assert refusal_of(tmp_path, text).startswith(f"Invalid configuration: {missing}=: ")


@pytest.mark.parametrize("line", ["keystore_type=JKS", "private_key_file=config.properties"])
def test_tls_is_checked_where_it_is_used(tmp_path, line):
    """Without an https address a Java keystore and half a pair are ignored."""
    assert load(tmp_path, line).config_file is not None
