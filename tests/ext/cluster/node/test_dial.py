import asyncio
import contextlib
import os
import socket
import ssl
import threading
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.surface.tls.certificates import Authority

from modelserver.ext.cluster.greeting import RESPONSE, GreetingError, challenge, confirm, invite
from modelserver.ext.cluster.node import dial as dial_module
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET, SecureConnection, dial, dial_streams
from modelserver.surface.tls.context import Certificate

_OWN = Certificate.throwaway(["127.0.0.1"])
_WAYS = {
    "blocking": lambda invitation: dial(invitation).close(),
    "streams": lambda invitation: asyncio.run(_briefly(invitation)),
}


async def _briefly(invitation):
    _, writer = await dial_streams(invitation)
    writer.transport.abort()


def receive(connection, size):
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionAbortedError
        received += piece
    return received


class FalseServer:
    """Whoever listens at an address: ``answer`` is called with each connection, in a thread.

    ``heard``: how many bytes of a node's greeting came, for each connection that got so far.
    """

    def __init__(self, answer, listener=None):
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.answered = 0
        self.invitation = invite("127.0.0.1", 0 if listener else self._listener.getsockname()[1])
        self._answer = answer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.answered += 1
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def serve():
    made = []

    def start(answer, listener=None):
        made.append(FalseServer(answer, listener))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    monkeypatch.setattr(dial_module, "PAUSES", (0.01, 0.01))


def greet(connection, invitation):
    first, nonce = challenge()
    connection.sendall(first)
    connection.sendall(confirm(invitation, nonce, receive(connection, RESPONSE.size)))


def secured(certificate, answer, newest=None):
    context = certificate.server_context(("modelserver",))
    if newest is not None:
        context.maximum_version = newest

    def answer_securely(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            answer(secure)

    return answer_securely


@pytest.fixture(params=_WAYS)
def way(request):
    """As a worker dials, and as an agent does."""
    return _WAYS[request.param]


def test_server_without_the_secret_is_refused(serve, way):
    """Who answers without knowing the secret is given up at once, and sent nothing more."""
    after = []

    def answer(connection):
        connection.sendall(challenge()[0])
        response = receive(connection, RESPONSE.size)
        # The best it has: the node's own proof.
        connection.sendall(response[-32:])
        after.append(connection.recv(1))

    server = serve(answer)
    with pytest.raises(GreetingError, match="the server could not prove that it knows the ticket"):
        way(server.invitation)
    assert server.answered == 1
    assert after in ([], [b""])


def test_server_that_is_none_is_refused(serve, way):
    server = serve(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6p1 Debian and so on ...\r\n"))
    with pytest.raises(GreetingError, match="no modelserver answers there"):
        way(server.invitation)
    assert server.answered == 1

    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        way(invite("127.0.0.1", port))


def test_a_closed_connection_is_tried_again(serve, way):
    refusals = [True, True]

    def answer(connection):
        if refusals:
            refusals.pop()
            return
        greet(connection, server.invitation)

    server = serve(answer)
    way(server.invitation)
    assert server.answered == 3
    refusals += [True] * 9
    with pytest.raises(ConnectionError):
        way(server.invitation)
    assert server.answered == 6


def test_silent_server_is_abandoned(serve, way, monkeypatch):
    monkeypatch.setattr(dial_module, "PAUSES", ())
    monkeypatch.setattr(dial_module, "DIAL_TIME", 0.2)
    over = threading.Event()
    server = serve(lambda _: over.wait(5) and None)
    with pytest.raises(OSError, match=r"timed out|does not answer"):
        way(server.invitation)
    over.set()


def test_only_the_pinned_certificate_is_trusted(serve, way, tmp_path):
    def answer(connection):
        greet(connection, server.invitation)

    server = serve(secured(_OWN, answer))
    way(msgspec.structs.replace(server.invitation, certificate=_OWN.chain.decode()))
    same_name = Certificate.throwaway(["127.0.0.1"]).chain.decode()
    authority = Authority(tmp_path)
    (_, one), (other_key, other) = authority.issue("server"), authority.issue("server2")
    server = serve(secured(Certificate(other.read_bytes(), other_key.read_bytes()), answer))
    for pinned in (same_name, one.read_text()):
        with pytest.raises(ssl.SSLCertVerificationError):
            way(msgspec.structs.replace(server.invitation, certificate=pinned))


def test_old_tls_is_not_spoken_but_a_wrong_clock_does_not_matter(serve, way):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "modelserver")])
    past = datetime.now(timezone.utc) - timedelta(days=400)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(past).not_valid_after(past + timedelta(days=1))
    chain = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server = serve(secured(Certificate(chain, pem), lambda connection: greet(connection, server.invitation)))
    way(msgspec.structs.replace(server.invitation, certificate=chain.decode()))

    server = serve(secured(_OWN, lambda _: None, ssl.TLSVersion.TLSv1_2))
    with pytest.raises(ssl.SSLError):
        way(msgspec.structs.replace(server.invitation, certificate=_OWN.chain.decode()))


def test_nothing_is_sent_in_the_clear_where_tls_was_promised(serve, way):
    heard = []

    def answer(connection):
        connection.sendall(challenge()[0])
        heard.append(connection.recv(1 << 16))

    server = serve(answer)
    with pytest.raises(OSError):  # noqa: PT011 - a failed handshake, or its closed connection
        way(msgspec.structs.replace(server.invitation, certificate=_OWN.chain.decode()))
    assert all(server.invitation.ticket not in data for data in heard)


def test_local_socket_of_another_server_is_not_used(serve, tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen()
    stranger = invite("h", 1)
    other = serve(lambda connection: greet(connection, stranger), local)
    server = serve(lambda connection: greet(connection, server.invitation))
    invitation = msgspec.structs.replace(server.invitation, path=path)
    with dial(invitation) as connection:
        assert connection.family == socket.AF_INET
    assert (other.answered, server.answered) == (1, 1)
    monkeypatch.setenv(LOCAL_SOCKET, "0")
    dial(invitation).close()
    assert (other.answered, server.answered) == (1, 2)
    monkeypatch.delenv(LOCAL_SOCKET)
    dial(msgspec.structs.replace(invitation, path=str(tmp_path / "none"))).close()
    assert server.answered == 3


def test_frozen_local_socket_is_not_waited_for(serve, tmp_path):
    """A socket whose server takes no more connections does not hold a worker for ever."""
    path = str(tmp_path / "s")
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(path)
    server = serve(lambda connection: greet(connection, server.invitation))
    dial(msgspec.structs.replace(server.invitation, path=path)).close()
    assert server.answered == 1
    waiting.close()
    local.close()


# -- an encrypted connection in a worker


@pytest.fixture
def ends():
    """A server's end, blocking, and a worker's."""
    pair = socket.socketpair()
    context = _OWN.server_context(("modelserver",))
    made = []
    thread = threading.Thread(target=lambda: made.append(context.wrap_socket(pair[0], server_side=True)))
    thread.start()
    worker = dial_module._context(_OWN.chain.decode()).wrap_socket(pair[1])
    thread.join()
    yield made[0], SecureConnection(worker)
    made[0].close()
    worker.close()


def received_by(worker, size, flags=0):
    """One read of at most so many bytes."""
    buffer = memoryview(bytearray(size))
    return bytes(buffer[: worker.recv_into(buffer, 0, flags)])


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 100_000, 5_000_000])
def test_both_directions_work_at_once(ends, size):
    server, worker = ends
    there, back = os.urandom(size), os.urandom(size)
    received = []

    def echo():
        received.append(receive(server, size))
        server.sendall(back)

    threads = [threading.Thread(target=echo), threading.Thread(target=worker.sendall, args=(there,))]
    for thread in threads:
        thread.start()
    got = bytearray()
    while len(got) < size:
        got += received_by(worker, 1 << 18)
    for thread in threads:
        thread.join()
    assert (received, bytes(got)) == ([there], back)


def test_nothing_decrypted_stays_behind(ends):
    server, worker = ends
    sizes = [1, 16_384, 16_383, 5, 40_000, 1, 16_384]
    for size in sizes:
        server.sendall(bytes(size))
    got = 0
    while got < sum(sizes):
        # A loop's reader reads only if the descriptor is readable.
        worker._wait(1)
        got += len(received_by(worker, 1 << 18, socket.MSG_DONTWAIT))
        assert worker._connection.pending() == 0
    with pytest.raises(BlockingIOError):
        received_by(worker, 1, socket.MSG_DONTWAIT)


def test_one_read_takes_all_that_has_come(ends):
    server, worker = ends
    for _ in range(5):
        server.sendall(bytes(10_000))
    buffer = memoryview(bytearray(40_000))

    assert worker.recv_into(buffer) == 30_000
    assert worker.recv_into(buffer) == 20_000


def test_pieces_are_sent_and_the_end_is_reported_after_what_came_before(ends):
    server, worker = ends
    assert worker.sendmsg([memoryview(b"one"), memoryview(b"two")]) == 3
    assert receive(server, 3) == b"one"
    assert worker.fileno() == worker._connection.fileno()

    server.sendall(b"last")
    server.close()

    assert [received_by(worker, 1 << 18) for _ in range(3)] == [b"last", b"", b""]


def test_a_waiting_thread_is_woken_by_the_end(ends):
    _, worker = ends
    got = []

    def read():
        try:
            got.append(received_by(worker, 10))
        except OSError as error:
            got.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    worker.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert not thread.is_alive()
    assert len(got) == 1
