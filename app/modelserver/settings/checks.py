"""What several settings must agree on before the server may start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.settings.payload_checks import check_payload_log

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.settings.settings import Settings


def check(settings: Settings) -> None:
    """Raises ConfigError for settings that cannot be served, or not safely (design 7 and 9)."""
    if settings.uses_tls:
        _check_keystore(settings)
        _check_key_pair(settings)
    _check_shared_addresses(settings)
    check_payload_log(settings)


def jks_advice(keystore: Path | None) -> str:
    """What to do with a keystore that only Java can read."""
    return (
        "only PKCS12 can be read, convert the keystore with keytool -importkeystore "
        f"-srckeystore {keystore or 'keystore.jks'} -destkeystore keystore.p12 -deststoretype PKCS12"
    )


def _check_keystore(settings: Settings) -> None:
    if settings.keystore_type.upper() != "PKCS12":
        raise ConfigError(
            f"Invalid configuration: keystore_type={settings.keystore_type}: {jks_advice(settings.keystore)}"
        )


def _check_key_pair(settings: Settings) -> None:
    given = {
        "private_key_file": settings.private_key_file,
        "certificate_file": settings.certificate_file,
    }
    missing = [name for name, path in given.items() if path is None]
    if len(missing) == 1:
        raise ConfigError(
            f"Invalid configuration: {missing[0]}=: it is needed beside the other file of the pair"
        )


def _check_shared_addresses(settings: Settings) -> None:
    """An address is served either in the clear or over TLS."""
    names = ["inference_address", "management_address"]
    if settings.enable_metrics_api:
        names.append("metrics_address")
    schemes: dict[tuple[str, int], tuple[str, str]] = {}
    for name in names:
        address = getattr(settings, name)
        if address.scheme == "unix" or address.port == 0:
            continue
        first, scheme = schemes.setdefault((address.host.lower(), address.port), (name, address.scheme))
        if scheme != address.scheme:
            raise ConfigError(
                f"Invalid configuration: {name}={address}: {first} has the same host and port over {scheme}"
            )
