"""What several settings must agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.models.settings.conftest import load, refusal_of

from modelserver.errors import ConfigError
from modelserver.models.settings.checks import check
from modelserver.models.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_java_keystores_are_refused(tmp_path: Path) -> None:
    """JKS cannot be read without Java, and the message says what to do."""
    message = refusal_of(tmp_path, "inference_address=https://127.0.0.1:8443\nkeystore_type=JKS")
    assert message.startswith("Invalid configuration: keystore_type=JKS: only PKCS12 can be read")


@pytest.mark.parametrize("source", ["private_key_file", "certificate_file"])
def test_half_a_pair_is_refused(tmp_path: Path, source: str) -> None:
    """A key without a certificate, or the other way round, is named (F66)."""
    (tmp_path / "file.pem").write_text("")
    missing = ({"private_key_file", "certificate_file"} - {source}).pop()
    text = f"management_address=https://127.0.0.1:8444\n{source}=file.pem"
    assert refusal_of(tmp_path, text).startswith(f"Invalid configuration: {missing}=: ")


def test_one_port_has_one_scheme(tmp_path: Path) -> None:
    """An address is served in the clear or over TLS, not both."""
    text = "inference_address=https://127.0.0.1:8080\nmanagement_address=http://127.0.0.1:8080"
    message = refusal_of(tmp_path, text)
    assert message == (
        "Invalid configuration: management_address=http://127.0.0.1:8080: "
        "inference_address has the same host and port over https"
    )


@pytest.mark.parametrize("line", ["keystore_type=JKS", "private_key_file=config.properties"])
def test_tls_is_checked_where_it_is_used(tmp_path: Path, line: str) -> None:
    """Without an https address a Java keystore and half a pair are ignored."""
    assert load(tmp_path, line).config_file is not None


def test_the_workers_address_has_a_port_of_its_own() -> None:
    """One that is that of another address is refused, with both, unless workers run on this machine."""
    with pytest.raises(ConfigError, match=r"worker_address=127\.0\.0\.1:8080: a port of its own is needed"):
        check(Settings(worker_launcher="agents", worker_address="127.0.0.1:8080"))
    for unused in ("127.0.0.1:8080", "nonsense"):
        check(Settings(worker_launcher="local", worker_address=unused))
    check(Settings(worker_launcher="agents", worker_address="127.0.0.1:0"))
