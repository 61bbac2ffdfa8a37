"""The addresses that the server listens on, and sockets bound to them."""

from __future__ import annotations

import os
import socket

from modelserver.errors import ConfigError
from modelserver.models.settings.address import Address, HostPort
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.services import Role


def roles_by_address(settings: Settings) -> dict[Address, set[Role]]:
    """The roles of each address (reference 1: equal addresses share one listener)."""
    roles: dict[Address, set[Role]] = {}
    roles.setdefault(settings.inference_address, set()).add("inference")
    roles.setdefault(settings.management_address, set()).add("management")
    if settings.enable_metrics_api:
        roles.setdefault(settings.metrics_address, set()).add("metrics")
        if settings.inference_address == settings.management_address:
            roles[settings.inference_address].add("metrics")
    return roles


def bind(address: Address, keys: str) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        ConfigError: the address cannot be bound; the message names the setting.
    """
    try:
        if address.scheme == "unix":
            return _bind_unix(address.path)
        return HostPort(address.host, address.port).bind()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"Cannot listen on {keys}={address}: {reason}") from error


def _bind_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A socket file without a listener is left over from an earlier server.
        if os.path.exists(path) and bound.connect_ex(path) != 0:
            os.unlink(path)
            bound.close()
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(path)
        os.chmod(path, 0o600)
    except OSError:
        bound.close()
        raise
    return bound
