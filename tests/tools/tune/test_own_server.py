import socket

import pytest

from modelserver.tools.tune import own_server
from modelserver.tools.tune.errors import TuningError
from modelserver.tools.tune.own_server import free_ports, own_environment


def test_environment_and_ports_are_the_servers_own(monkeypatch):
    """A port that is used is not free; none is one of those that connections get."""
    values = {"TS_CONFIG_FILE": "x", "LOG_LOCATION": "y", "HOME": "/h", "OMP_NUM_THREADS": "7"}
    assert own_environment(values) == {"HOME": "/h", "OMP_NUM_THREADS": "7"}
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert max(ports) < 32_768
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        port = used.getsockname()[1]
        (free,) = free_ports(1)
        monkeypatch.setattr(own_server, "_PORTS", [port, free])
        assert {free_ports(1)[0] for _ in range(20)} == {free}
        with pytest.raises(TuningError, match="2 ports are needed, and 1 of"):
            free_ports(2)
