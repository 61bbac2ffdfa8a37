"""The addresses of gRPC, whose ports are reserved before gRPC is imported."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from modelserver.errors import ConfigError
from modelserver.models.settings.address import HostPort
from modelserver.models.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """An address, of one of two sides. Port 0 is any free one."""

    side: Literal["inference", "management"]
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def keys(self) -> str:
        """The settings of the address, as errors name them."""
        return f"grpc_{self.side}_address={self.host}, grpc_{self.side}_port={self.port}"


def addresses(settings: Settings) -> tuple[GrpcAddress, GrpcAddress]:
    """The addresses of inference and of management."""
    return (
        GrpcAddress("inference", settings.grpc_inference_address, settings.grpc_inference_port),
        GrpcAddress("management", settings.grpc_management_address, settings.grpc_management_port),
    )


@contextlib.contextmanager
def reserved(settings: Settings) -> Iterator[list[socket.socket]]:
    """Holds the ports until gRPC listens there, which takes the sockets over.

    Raises:
        ConfigError: one of them is not available; names the settings.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(_hold(each))) for each in addresses(settings)]


def _hold(address: GrpcAddress) -> socket.socket:
    try:
        return HostPort(address.host, address.port).bind()
    except OSError as error:
        raise taken(address, error.strerror or str(error)) from error


def taken(address: GrpcAddress, reason: str) -> ConfigError:
    """The error that stops the server's start."""
    return ConfigError(
        f"Cannot listen on {address.keys}: {reason}; choose another port, or enable_grpc_api=false"
    )
