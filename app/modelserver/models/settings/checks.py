"""Checks that involve several settings, or several extensions."""

from __future__ import annotations

import re

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings


def check(settings: Settings) -> None:
    """Raises ConfigError for settings that are inconsistent or unsafe (design 7 and 9)."""
    # An address is served either without or with TLS.
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


def header_fault(name: str, needed: str, purpose: str) -> str:
    """Why a header is not copied, empty if it may be: what is ``needed``, or it is never ``purpose``."""
    if _HEADER_NAME.fullmatch(name) is None:
        return f"{needed} needed"
    return "" if _CREDENTIALS.search(name) is None else f"headers that hold credentials are never {purpose}"
