"""Whether tokens are required, and what the operator is told about it at the start (design 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.scopes import KEY_FILE, Scope

WARNING = "Warning: "
"""The beginning of lines that the operator should act upon."""


def open_addresses(settings: Settings) -> list[Address]:
    """The addresses that other machines may be able to connect to, each once."""
    return [address for address in _listening(settings) if not address.is_loopback]


def _listening(settings: Settings) -> list[Address]:
    addresses = [settings.inference_address, settings.management_address]
    if settings.enable_metrics_api:
        addresses.append(settings.metrics_address)
    grpc = (
        (settings.grpc_inference_address, settings.grpc_inference_port),
        (settings.grpc_management_address, settings.grpc_management_port),
    )
    for host, port in grpc if settings.enable_grpc_api else ():
        addresses.append(Address("https" if settings.enable_grpc_ssl else "http", host, port))
    return list(dict.fromkeys(addresses))


def wants_tokens(settings: Settings, environ: Mapping[str, str]) -> bool:
    """``token_authorization=auto`` requires tokens if an address is open to other machines or any are given.

    TorchServe always does (``always``). ``disable_token_authorization`` takes precedence.
    """
    if settings.disable_token_authorization:
        return False
    always = settings.token_authorization == "always"  # noqa: S105 - it says when
    if always or settings.token_file is not None:
        return True
    return any(environ.get(scope.variable) for scope in Scope) or bool(open_addresses(settings))


def notice(settings: Settings, environ: Mapping[str, str], cwd: Path) -> Iterator[str]:
    """Lines for the start: whether tokens are required, why, and where they are."""
    reachable = open_addresses(settings)
    secured = any(address.scheme == "https" for address in _listening(settings))
    if secured and not (settings.certificate_file or settings.keystore):
        yield f"{WARNING}no certificate is configured: https uses one that clients cannot verify."
    named = ", ".join(map(str, reachable))
    if not wants_tokens(settings, environ):
        if reachable:
            yield f"{WARNING}token authorization is off: anyone who can reach {named} may use it."
        return
    sources = [scope.variable for scope in Scope if environ.get(scope.variable)]
    sources += [f"token_file {settings.token_file}"] if settings.token_file else []
    places = f"those given ({', '.join(sources)}), and for the rest" if sources else "they are in"
    if reachable:
        why = f"{named} is open to other machines"
    else:
        why = "tokens were given" if sources else "the configuration requires it"
    yield f"Token authorization is on, since {why}; tokens: {places} {cwd / KEY_FILE}"
    clear = [str(address) for address in reachable if address.scheme == "http"]
    if clear:
        yield f"{WARNING}tokens are sent unencrypted to {', '.join(clear)}: use https, or a proxy that does."
