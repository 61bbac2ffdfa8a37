import os
import socket
from pathlib import Path

import pytest

from modelserver.ext.cluster.local_socket import address_of
from modelserver.ext.forking import messages


@pytest.fixture
def ends():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_requests_bring_descriptors(ends):
    request = messages.Spawn("/models/m", "image_classifier", ["torch"], {"A": "é\n" * 4000}, 3)
    reading, writing = os.pipe()
    messages.send(ends[0], request, [reading, writing])
    received = messages.receive_request(ends[1])

    assert received[0] == request
    assert [os.fstat(d).st_ino for d in received[1]] == [os.fstat(reading).st_ino] * 2
    assert [os.get_inheritable(d) for d in received[1]] == [False, False]
    for descriptor in (reading, writing, *received[1]):
        os.close(descriptor)
    for end in ends:
        end.close()


def test_what_is_to_be_imported(ends):
    request = messages.Prepare("/models/m", "", ["torch"])
    messages.send(ends[0], request)

    assert messages.receive_request(ends[1]) == (request, [])
    for end in ends:
        end.close()


REPORTS = [messages.Spawned(7), messages.ForkRefused("why"), messages.ChildEnded(7, -9)]


@pytest.mark.parametrize("report", [messages.ModulesImported(), *REPORTS])
def test_reports_are_received(ends, report):
    messages.send(ends[0], report)
    ends[0].close()

    assert messages.receive_report(ends[1]) == (report, [])
    assert messages.receive_report(ends[1]) is None
    assert messages.receive_request(ends[1]) is None
    ends[1].close()


def test_a_server_that_is_gone(ends):
    messages.send(ends[1], messages.ChildEnded(7, -9))
    ends[0].close()

    assert messages.receive_request(ends[1]) is None
    ends[1].close()


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
