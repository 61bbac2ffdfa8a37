"""The server that the tuner starts for itself."""

from __future__ import annotations

import pytest

from modelserver.tuning.own_server import free_ports, message_of, own_environment


def test_the_servers_environment_is_its_own() -> None:
    """What configures another server is left out."""
    given = {"TS_CONFIG_FILE": "x", "LOG_LOCATION": "y", "HOME": "/h", "OMP_NUM_THREADS": "7"}

    assert own_environment(given) == {"HOME": "/h", "OMP_NUM_THREADS": "7"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"code": 500, "message": "two\\nlines"}', "two lines"),
        (b"[1]", "[1]"),
        (b"\xff plain", "\ufffd plain"),
    ],
)
def test_an_errors_message_is_one_line(body: bytes, said: str) -> None:
    """Of JSON as the server writes it, or of anything else."""
    assert message_of(body) == said


def test_free_ports_differ() -> None:
    """As many as asked for, no two alike."""
    assert len(set(free_ports(5))) == 5
