"""Checks at startup that involve several settings."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings


def check(settings: Settings) -> None:
    """Raises ConfigError for settings that are inconsistent or unsafe (design 7 and 9)."""
    if settings.uses_tls:
        if settings.keystore_type.upper() != "PKCS12":
            advice = jks_advice(settings.keystore)
            raise ConfigError(f"Invalid configuration: keystore_type={settings.keystore_type}: {advice}")
        _check_key_pair(settings)
    _check_shared_addresses(settings)
    check_payload_log(settings)


def jks_advice(keystore: Path | None) -> str:
    """How to convert a keystore that only Java can read."""
    return (
        "only PKCS12 can be read, convert the keystore with keytool -importkeystore "
        f"-srckeystore {keystore or 'keystore.jks'} -destkeystore keystore.p12 -deststoretype PKCS12"
    )


def _check_key_pair(settings: Settings) -> None:
    files = {"private_key_file": settings.private_key_file, "certificate_file": settings.certificate_file}
    missing = [name for name, path in files.items() if path is None]
    if len(missing) == 1:
        raise ConfigError(
            f"Invalid configuration: {missing[0]}=: private_key_file and certificate_file are needed together"
        )


def _check_shared_addresses(settings: Settings) -> None:
    """An address is served either without or with TLS."""
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


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CREDENTIALS = re.compile(r"auth|cookie|token|secret|passw|credential|api-?key|session", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")


def check_payload_log(settings: Settings) -> None:
    """Raises ConfigError for a sink, header or annotation that is invalid or forbidden."""
    if settings.payload_log_url is not None:
        reason = _fault_of_url(settings.payload_log_url)
        if reason:
            # Without the URL, which may contain a password.
            raise ConfigError(f"Invalid configuration: payload_log_url: {reason}")
    for name in listed(settings.payload_log_headers):
        if fault := header_fault(name, "names of headers, separated by commas, are", "sent"):
            raise _wrong("payload_log_headers", name, fault)
    for item in listed(settings.payload_log_annotations):
        if "=" not in item:
            raise _wrong("payload_log_annotations", item, "name=value items, separated by commas, are needed")


def header_fault(name: str, needed: str, purpose: str) -> str:
    """Why a header is not copied, empty if it may be: what is ``needed``, or it is never ``purpose``."""
    if _HEADER_NAME.fullmatch(name) is None:
        return f"{needed} needed"
    return "" if _CREDENTIALS.search(name) is None else f"headers that hold credentials are never {purpose}"


def _fault_of_url(url: str) -> str | None:
    needed = "http://host[:port][/path], or https, is needed"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return needed
    if parts.scheme in ("s3", "gs", "abfs"):
        return f"{needed}: events are not written to {parts.scheme}://"
    if not usable or _PRINTABLE.fullmatch(url) is None:
        return needed
    if parts.username is not None or parts.password is not None:
        return "user and password are not allowed"
    return None


def listed(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _wrong(key: str, value: str, reason: str) -> ConfigError:
    return ConfigError(f"Invalid configuration: {key}={value[:100]}: {reason}")
