import os
import socket
from pathlib import Path

import pytest

from modelserver.ext.cluster.local_socket import address_of
from modelserver.ext.forking.messages import (
    ChildEnded,
    ForkRefused,
    ModulesImported,
    Prepare,
    Spawn,
    Spawned,
    receive_report,
    receive_request,
    send,
)


@pytest.fixture
def ends():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_requests_bring_descriptors(ends):
    request = Spawn("/models/m", "image_classifier", ["torch"], {"A": "é\n" * 4000}, 3)
    reading, writing = os.pipe()
    send(ends[0], request, [reading, writing])
    received = receive_request(ends[1])

    assert received[0] == request
    assert [os.fstat(d).st_ino for d in received[1]] == [os.fstat(reading).st_ino] * 2
    assert [os.get_inheritable(d) for d in received[1]] == [False, False]
    for descriptor in (reading, writing, *received[1]):
        os.close(descriptor)
    for end in ends:
        end.close()


def test_what_is_to_be_imported(ends):
    request = Prepare("/models/m", "", ["torch"])
    send(ends[0], request)

    assert receive_request(ends[1]) == (request, [])
    for end in ends:
        end.close()


@pytest.mark.parametrize("report", [ModulesImported(), Spawned(7), ForkRefused("why"), ChildEnded(7, -9)])
def test_reports_are_received(ends, report):
    send(ends[0], report)
    ends[0].close()

    assert receive_report(ends[1]) == (report, [])
    assert receive_report(ends[1]) is None
    assert receive_request(ends[1]) is None
    ends[1].close()


def test_a_server_that_is_gone(ends):
    send(ends[1], ChildEnded(7, -9))
    ends[0].close()

    assert receive_request(ends[1]) is None
    ends[1].close()


# Sockets in the file system


@pytest.mark.parametrize("depth", [0, 30])
def test_path_of_any_length_is_bound(tmp_path, depth):
    folder = tmp_path.joinpath(*["folder"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / "workers.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with address_of(path) as address:
            server.bind(address)
        server.listen()
        assert Path(path).is_socket()
        with address_of(path) as address:
            client.connect(address)
