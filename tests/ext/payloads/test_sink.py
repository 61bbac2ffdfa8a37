import contextlib
import socket
import threading

import pytest

from modelserver.ext.payloads.sink import Sink, SinkConnection, SinkError

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Script:
    """A server that sends prepared texts, one after the other; each may end its connection."""

    def __init__(self, *answers, closes=False):
        self.received: list[bytes] = []
        self.connections = 0
        self._answers = list(answers)
        self._closes = closes
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/a?b=c"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            self._run()

    def _run(self):
        while self._answers:
            client, _ = self._socket.accept()
            self.connections += 1
            with contextlib.suppress(OSError), client:
                while self._answers and (data := client.recv(1 << 20)):
                    self.received.append(data)
                    client.sendall(self._answers.pop(0))
                    if self._closes:
                        break

    def close(self):
        with contextlib.suppress(OSError):
            # This wakes a thread that waits for a connection.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


@contextlib.contextmanager
def posting(script, timeout=2.0):
    connection = SinkConnection(Sink(script.url, timeout))
    try:
        yield connection
    finally:
        connection.close()
        script.close()


def test_what_is_sent():
    """One POST with the URL's path and query, its host, the heads and the length; the connection is kept."""
    script = Script(_OK, _OK)
    with posting(script) as connection:
        connection.post({"ce-id": "1"}, b"abc")
        connection.post({}, b"")

    host = script.url.split("/")[2]
    assert script.received == [
        f"POST /a?b=c HTTP/1.1\r\nhost: {host}\r\nce-id: 1\r\ncontent-length: 3\r\n\r\nabc".encode(),
        f"POST /a?b=c HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n".encode(),
    ]
    assert script.connections == 1


@pytest.mark.parametrize(
    ("answer", "closes"),
    [
        (b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + _OK, False),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", True),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + bytes(1 << 17), True),
    ],
    ids=["202", "204", "chunks", "100", "close", "HTTP/1.0", "long"],
)
def test_answers_that_are_well(answer, closes):
    script = Script(answer, answer, closes=closes)
    with posting(script) as connection:
        connection.post({}, b"1")
        connection.post({}, b"2")

    assert script.connections == (2 if closes else 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", "it answered 503"),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", "it answered 302"),
        (b"SSH-2.0-OpenSSH\r\n", "HTTP"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_answers_that_are_not(answer, reason):
    with posting(Script(answer, closes=True)) as connection, pytest.raises(SinkError, match=reason):
        connection.post({}, b"1")


def test_timeout_covers_the_whole_exchange():
    script = Script(b"HTTP/1.1 200 OK\r\n", b"the rest, which is never asked for")
    with posting(script, 0.1) as connection, pytest.raises(SinkError, match=r"no answer within 0\.1 s"):
        connection.post({}, b"1")


def test_large_bodies_are_sent():
    body = bytes(range(256)) * 4096
    with socket.create_server(("127.0.0.1", 0)) as server:
        received = bytearray()

        def take():
            client, _ = server.accept()
            with client:
                while not received.endswith(body):
                    received.extend(client.recv(1 << 20))
                client.sendall(_OK)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        connection = SinkConnection(Sink(f"http://127.0.0.1:{server.getsockname()[1]}", 5.0))
        connection.post({}, body)
        connection.close()
        thread.join(5)

    assert received.startswith(b"POST / HTTP/1.1\r\n")
    assert received.endswith(b"\r\n\r\n" + body)
