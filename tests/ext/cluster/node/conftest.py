import socket

import pytest


@pytest.fixture
def bound():
    """A socket on loopback that does not listen yet."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made
