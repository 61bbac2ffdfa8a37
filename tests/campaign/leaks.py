"""What remains in memory, in descriptors and on the disk after uploads, broken bodies, large messages and
models that come and go (F71, F72), and what is held for clients that do not take their answers.
"""

import contextlib
import functools
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from hpack import Encoder
from tests.campaign.callers import receive_answer
from tests.campaign.report import Report
from tests.campaign.targets import MIB, Holdings, hold_level, quiet, settled, target, tracebacks
from tests.e2e import unread
from tests.e2e.grpc_client import INFERENCE, channel, oip, predict, stub
from tests.e2e.raw import connect, post
from tests.e2e.serving import Server, wait_until
from tests.ext.grpc.http2 import talking

from modelserver.ext.grpc.framing import message_framed

BODY = 6_000_000
# At the most, and however much time there is.
MOST = 100_000
WARM_UP = 20
# Registrations that fill the last lines of the log, which the server keeps for the console.
LOGGED = 1500
# Shorter runs have each kind once.
BOTH_SECONDS = 60.0
RELEASE_SECONDS = 2.0  # until the allocator returns freed memory to the system
# Uploads that are not read to their end lie in memory at the same time, as those of so many clients would.
AT_ONCE = 20
# Resident memory afterwards: of the server and its front ends, in 5 s.
SHARE = 0.10
SHARE_OF_CYCLES = 0.05
# Clients that ask for large answers and do not take them; what the server may hold for them, and what it may
# need besides for answers on their way; twice as much for a front end, which shares 64 MiB with the server.
CROWD = 150
OUTGOING, BESIDE = 64 * MIB, 64 * MIB
DROP, PAUSE = 1000, 0.25  # bytes, seconds
# HTTP/2: the first windows, the longest frame, a setting and a reason (RFC 9113).
WINDOW, LONGEST_FRAME, INITIAL_WINDOW, CANCEL = 65_535, 16_384, 4, 8


def run(report: Report, seconds: float) -> None:
    """One process and two front ends; each kind has its share of the time, and a server of its own. A short
    run has each kind of request and one kind of unread answers once, on one of two servers.
    """
    short = seconds < BOTH_SECONDS
    for front_ends in (1, 2):
        what = "one process" if front_ends == 1 else f"{front_ends} front ends"
        kinds: dict[str, Callable[[Server], int]] = {
            "uploads of 6 MB, a connection each": upload,
            "bodies broken off": break_off,
        }
        of_one = {
            "bodies broken off on management": break_off_management,
            "gRPC calls of 6 MB": call_by_grpc,
            "gRPC messages broken off": break_off_grpc,
            "registrations": register_and_unregister,
        }
        if front_ends == 1:
            kinds = of_one if short else kinds | of_one
        crowds = CROWDS if not short else SHORT_CROWDS if front_ends == 1 else {}
        share = seconds / 16
        attempts = [
            functools.partial(
                leak,
                report,
                what=f"{what}, {kind}",
                once=once,
                seconds=share,
                warm_up=LOGGED if once is register_and_unregister and not short else WARM_UP,
            )
            for kind, once in kinds.items()
        ] + [
            functools.partial(
                hold_unread, report, what=f"{what}, {kind}", crowd=crowd, drip=drip, seconds=share
            )
            for kind, (crowd, drip) in crowds.items()
        ]
        for some in [attempts] if short else [[each] for each in attempts]:
            with target(front_ends, max_outgoing_bytes=OUTGOING, job_queue_size=1000) as server:
                server.registered("echo.mar").registered("obey.mar")
                for attempt in some:
                    attempt(server)


def leak(
    report: Report, server: Server, what: str, once: Callable[[Server], int], seconds: float, warm_up: int
) -> None:
    """Holds that nothing is kept. ``once`` returns a count, of which ``warm_up`` come before the readings."""
    share = SHARE_OF_CYCLES if once is register_and_unregister else SHARE
    files = temporary_files(server)
    warm = 0
    while warm < warm_up:
        warm += once(server)
    wait_until(lambda: quiet(server), "it is quiet")
    time.sleep(RELEASE_SECONDS)
    before = Holdings.of(server)
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and done < MOST:
        done += once(server)
    report.figure(f"{what}: how many", done)
    hold_level(report, what, before, settled(server, before, share), share)
    report.hold(server.predict("echo", b"x").content == b"x", f"{what}: no longer serves")
    report.hold(quiet(server), f"{what}: something still waits or runs")
    left = temporary_files(server) - files
    report.hold(not left, f"{what}: files are left: {sorted(map(str, left))[:5]}")
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")


def temporary_files(server: Server) -> set[Path]:
    """All below the server's temporary directory."""
    return set(server.home.temp.rglob("*"))


def upload(server: Server) -> int:
    """As ``curl -T`` does: a connection, a large body, its answer, the end."""
    with connect(server.port, 30) as connection:
        connection.sendall(post("/predictions/echo", b"u" * BODY))
        answer = receive_answer(connection)
    assert answer is not None, "the connection ended before the answer"
    assert (answer.status, len(answer.body)) == (200, BODY), answer.status
    return 1


def break_off(server: Server) -> int:
    """Clients that send most of a body and break off, with a reset and without."""
    return leave_bodies(server.port, post("/predictions/echo", b"b" * BODY))


def break_off_management(server: Server) -> int:
    """Breaks off requests on the management port, which go the long way."""
    request = post("/models", b"b" * BODY, "Content-Type: application/json")
    return leave_bodies(server.port_of("management"), request)


def leave_bodies(port: int, request: bytes) -> int:
    """Several at the same time. What the server answers meanwhile, such as a refusal, nobody reads."""
    with contextlib.ExitStack() as stack:
        for number in range(AT_ONCE):
            connection = stack.enter_context(connect(port, 30))
            with contextlib.suppress(ConnectionError):
                connection.sendall(request[: len(request) * 3 // 4])
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return AT_ONCE


def call_by_grpc(server: Server) -> int:
    """Both services, over one connection that is ended afterwards."""
    body = b"g" * BODY
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1]}
    with channel(server, "inference") as to:
        predictions = stub(to, f"{INFERENCE}InferenceAPIsService").Predictions
        answer = predictions(predict("echo", data=body), timeout=30)
        assert len(answer.prediction) == BODY
        raw = struct.pack("<I", BODY) + body
        request = oip("ModelInferRequest", model_name="echo", inputs=[tensor], raw_input_contents=[raw])
        stub(to, "inference.GRPCInferenceService").ModelInfer(request, timeout=30)
    return 2


def break_off_grpc(server: Server) -> int:
    """Calls of which most of the message comes; half of the streams are reset, then the connections end."""
    message = message_framed(predict("echo", data=b"g" * BODY).SerializeToString())
    port = int(str(server.settings["grpc_inference_port"]))
    with contextlib.ExitStack() as stack:
        for number in range(AT_ONCE):
            connection = stack.enter_context(connect(port, 30))
            send_message(connection, message[: len(message) * 3 // 4])
            if number % 2:
                connection.sendall(talking.frame(talking.RESET, 0, 1, talking.number(CANCEL)))
    return AT_ONCE


def send_message(connection: socket.socket, message: bytes) -> None:
    """The head of a call, and so much of its message, as the server's windows allow."""
    path = f"/{INFERENCE}InferenceAPIsService/Predictions"
    fields = (*talking.POST[:2], (":path", path), (":authority", "x"), ("content-type", "application/grpc"))
    head = talking.frame(talking.HEADERS, talking.WHOLE, 1, Encoder().encode(fields))
    connection.sendall(talking.PREFACE + talking.frame(talking.SETTINGS, 0, 0) + head)
    windows, sent, received = {0: WINDOW, 1: WINDOW}, 0, b""
    while sent < len(message):
        if room := min(*windows.values(), LONGEST_FRAME, len(message) - sent):
            connection.sendall(talking.frame(talking.DATA, 0, 1, message[sent : sent + room]))
            sent += room
            windows = {stream: window - room for stream, window in windows.items()}
            continue
        more = connection.recv(1 << 16)
        assert more, "the connection ended"
        received += more
        while len(received) >= (end := 9 + int.from_bytes(received[:3], "big")):
            (got,) = talking.frames_of(received[:end])
            received = received[end:]
            if got.kind == talking.WINDOW:
                windows[got.stream] += int.from_bytes(got.payload, "big")
            elif got.kind == talking.SETTINGS and not got.flags:
                settings = dict(struct.iter_unpack(">HI", got.payload))
                windows[1] += settings.get(INITIAL_WINDOW, WINDOW) - WINDOW


def register_and_unregister(server: Server) -> int:
    """A model that comes and goes, mostly without a worker."""
    for _ in range(20):
        server.registered("echo.mar", model_name="passing", initial_workers=0).unregister("passing")
    server.registered("echo.mar", model_name="passing").unregister("passing")
    return 21


def hold_unread(
    report: Report,
    server: Server,
    what: str,
    crowd: Callable[[Server], list[socket.socket]],
    drip: Callable[[list[socket.socket]], None],
    seconds: float,
) -> None:
    """Holds that what is held for a crowd of clients is bounded, and gone after them; others are served."""
    for _ in range(WARM_UP):
        server.predict("obey", unread.ORDER, headers={"content-type": "application/json"})
    # What the first crowd needs is kept for the next.
    hold(server, crowd, drip, 0.0)
    wait_until(lambda: quiet(server), "it is quiet")
    time.sleep(RELEASE_SECONDS)
    before = Holdings.of(server)
    most, statuses = hold(server, crowd, drip, seconds)
    report.figure(f"{what}: most memory", f"{before.memory / MIB:.0f} -> {most / MIB:.0f} MiB")
    served = f"{statuses.count(200)} of {len(statuses)}"
    report.figure(f"{what}: others served", served)
    beside = BESIDE * (2 * len(server.processes()) - 1)
    report.hold(most - before.memory < OUTGOING + beside, f"{what}: {most / MIB:.0f} MiB were held")
    report.hold({200} <= set(statuses) <= {200, 503}, f"{what}: others were served {served} times")
    hold_level(report, what, before, settled(server, before, SHARE), SHARE)
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")


def hold(
    server: Server,
    crowd: Callable[[Server], list[socket.socket]],
    drip: Callable[[list[socket.socket]], None],
    seconds: float,
) -> tuple[int, list[int]]:
    """A crowd for so long, and until all of it is answered: the most memory, and how others were served."""
    most, statuses, end = server.memory(), list[int](), time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client) for client in crowd(server)]
        # Refused clients try again.
        while (
            (now := time.monotonic()) < end or not quiet(server) or (200 not in statuses and now < end + 30)
        ):
            drip(clients)
            most = max(most, server.memory())
            statuses.append(server.predict("echo", b"x").status_code)
            time.sleep(PAUSE)
    return most, statuses


def connections(server: Server) -> list[socket.socket]:
    """Each client has one."""
    return [unread.ask(server.port) for _ in range(CROWD)]


def calls(server: Server) -> list[socket.socket]:
    """All clients share one, with closed windows."""
    return [unread.call(int(str(server.settings["grpc_inference_port"])), CROWD)]


def read_a_drop(clients: list[socket.socket]) -> None:
    """Of each answer, unless its connection has ended."""
    for client in clients:
        with contextlib.suppress(OSError):
            client.recv(DROP, socket.MSG_DONTWAIT)


def allow_a_byte(clients: list[socket.socket]) -> None:
    """Of each answer, and reads what comes."""
    for client in clients:
        unread.open_windows(client, CROWD, 1)
    for client in clients:
        client.recv(1 << 20)


# The others are in tests/e2e/test_clients_that_do_not_read.py as well.
SHORT_CROWDS = {"gRPC answers read in drops": (calls, allow_a_byte)}
CROWDS = {
    "unread answers": (connections, lambda _: None),
    "answers read in drops": (connections, read_a_drop),
    "unread gRPC answers": (calls, lambda _: None),
    **SHORT_CROWDS,
}
