import socket

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.grpc.ports import addresses, reserved
from modelserver.models.settings.settings import Settings


def test_ports_are_those_of_the_settings_until_the_end():
    """Both sides, as the settings say; IPv6 is in brackets where gRPC reads it."""
    first, second = addresses(Settings(grpc_inference_address="::1", grpc_management_port=9))
    assert (str(first), str(second)) == ("[::1]:7070", "127.0.0.1:9")

    with reserved(Settings(grpc_inference_port=0, grpc_management_port=0)) as held:
        ports = [each.getsockname()[1] for each in held]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports[0]))
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[0]))

    assert len(set(ports)) == 2


def test_taken_port_is_refused_with_its_settings():
    """The error names the settings, the reason and the ways out (F56)."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = Settings(grpc_inference_port=0, grpc_management_port=port)
        with pytest.raises(ConfigError) as caught, reserved(settings):
            pass

    assert str(caught.value) == (
        f"Cannot listen on grpc_management_address=127.0.0.1, grpc_management_port={port}: "
        "Address already in use; choose another port, or enable_grpc_api=false"
    )
