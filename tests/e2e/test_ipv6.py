import re
import socket
from functools import partial

import pytest
from tests.e2e.serving import addresses, wait_until

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")


def lines_of(server, path):
    text = (server.home.path / "logs" / "access_log.log").read_text("utf-8")
    return [line for line in text.splitlines() if f" {path} " in line]


def test_all_ports_are_served_on_loopback(start_server):
    """By front ends and server; pages under foreign names read nothing; the log has clients in brackets."""
    settings = addresses(host="[::1]")
    server = start_server(**settings, frontend_processes=2)
    server.registered("echo.mar")

    assert server.predict("echo", b"x").content == b"x"
    assert server.management.get("/models").status_code == 200
    assert server.management.get("/models", headers={"Host": "evil.example"}).status_code == 403
    assert server.metrics.get("/metrics").status_code == 200
    for path in ("/predictions/echo", "/models"):
        (line, *_) = wait_until(partial(lines_of, server, path), "the request is logged")
        assert re.search(r" - /\[::1\]:\d+ ", line)
    assert f"Inference: {settings['inference_address']}," in server.home.output()
