"""What several settings must agree on before the server may start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from modelserver.settings.settings import Settings

_LISTENERS = ("inference_address", "management_address", "metrics_address")


def check(settings: Settings) -> None:
    """Raises ConfigError for settings that cannot be served, or not safely (design 7 and 9)."""
    _check_tls(settings)
    _check_management(settings)


def _check_tls(settings: Settings) -> None:
    for name in _LISTENERS:
        address = getattr(settings, name)
        if address.scheme == "https":
            raise ConfigError(
                f"Invalid configuration: {name}={address}: TLS is not available yet, use http:// or unix:"
            )
    if settings.keystore_type.upper() != "PKCS12":
        raise ConfigError(
            f"Invalid configuration: keystore_type={settings.keystore_type}: only PKCS12 can be read, "
            "convert the keystore with keytool -importkeystore -deststoretype PKCS12"
        )


def _check_management(settings: Settings) -> None:
    address = settings.management_address
    if address.is_loopback or settings.disable_token_authorization:
        return
    shared = ", which inference shares," if settings.inference_address == address else ""
    raise ConfigError(
        f"Invalid configuration: management_address={address}: this address{shared} is open to other "
        "machines and management has no tokens yet; use a loopback address such as "
        f"http://127.0.0.1:{address.port}, or --disable-token-auth to accept everyone who can reach it"
    )
