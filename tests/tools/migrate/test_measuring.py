"""The load that both servers get."""

from __future__ import annotations

import pytest

from modelserver.tools.migrate.calls import Call
from modelserver.tools.migrate.measuring import clients_for, head_and_body
from modelserver.tools.migrate.servers import Server, Version


@pytest.mark.parametrize(("batch", "workers", "clients"), [(1, 0, 2), (1, 1, 2), (4, 2, 16), (64, 8, 64)])
def test_clients_fill_the_batches_of_all_workers(batch: int, workers: int, clients: int) -> None:
    """Twice, within bounds."""
    assert clients_for(Version("m", "1", "m.mar", ready=workers, batch_size=batch)) == clients


def test_requests_carry_the_token_of_their_server() -> None:
    """And their own headers and length."""
    server = Server("TorchServe", {"inference": ("h", 80)}, {"inference": "secret"})
    call = Call("", "inference", "POST", "/predictions/m", (("X", "y"), ("Host", "other")), b"body")

    assert head_and_body(server, call) == (
        b"POST /predictions/m HTTP/1.1\r\nHost: h:80\r\nX: y\r\nAuthorization: Bearer secret\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )
