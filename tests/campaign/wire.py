"""Odd bytes on every port, of one process and of front ends: one well-formed answer or a clean close, nothing
inside a body is ever a request, odd frames are refused with their code, and the server lives without a
traceback (F5, F13 to F16, F37).
"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from tests.campaign import frames
from tests.campaign.callers import Answer, Malformed, take_answer
from tests.campaign.report import Report
from tests.campaign.targets import MIB, Holdings, quiet, target, tracebacks
from tests.e2e.raw import connect, post
from tests.e2e.serving import Server, wait_until

from modelserver.surface.http.connection import CHECK_SECONDS, KEEP_ALIVE, RECEIVE_TIMEOUT, SEND_TIMEOUT

# In the target of each request that stands inside a body: the access log shows it if it was one.
MARK = "smuggled"
HIDDEN = f"GET /{MARK} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
HIDDEN_REGISTRATION = post(f"/models?url=echo.mar&model_name={MARK}&initial_workers=0", b"")
MANAGEMENT = ("/models", "/api-description")
# A request in order, that every port answers.
PLAIN = b"GET /api-description HTTP/1.1\r\nHost: localhost\r\n\r\n"
# More than the buffers of both sides take, and less than a body may be.
LARGE = b"n" * 6_400_000
PATIENCE = 60.0
# Bytes after the last response arrive within this time.
AFTERWARDS = 0.1
# Clients that ask and read nothing.
STUBBORN = 8
# Connections that flood gRPC's port at a time.
FLOODING = 8
PIECE_SECONDS = 0.05
# A busy machine may take so many seconds longer than the server's clocks.
BUSY = 2.0
# Each clock runs out between two looks at it. That of an answer starts with such a look. Where the system's
# buffers take all answers of one that does not read, it has an idle connection.
CUT_OFF = max(RECEIVE_TIMEOUT, SEND_TIMEOUT + CHECK_SECONDS, KEEP_ALIVE) + CHECK_SECONDS + BUSY
# A run of so long waits for it.
PATIENT_SECONDS = 180.0
DRIBBLE = 0.3
HELD_BY_WHO_DOES_NOT_READ = 64 * MIB

# answered: exactly so many answers, none a 5xx. refused: one answer of 4xx, 501 or 505, then the end.
# either: at most so many answers, none a 5xx, and the end or an open connection.
Outcome = Literal["answered", "refused", "either"]


@dataclass(frozen=True)
class Case:
    """Bytes for a path; ``echo`` is the body that a model which echoes gives back."""

    name: str
    sent: bytes
    expected: Outcome = "answered"
    answers: int = 1
    echo: bytes | None = None
    head: bool = False
    half_close: bool = False
    in_pieces: bool = False  # what follows the first head comes a moment later
    taken: bool = False  # the server takes all of it, though it may answer before
    behind: bool = False  # what is refused comes behind the body: who needs no body may have answered before


def message(
    path: str, *lines: str, body: bytes = b"", method: str = "POST", host: str = "Host: localhost"
) -> bytes:
    """A request without a content length of its own."""
    head = [f"{method} {path} HTTP/1.1", *([host] if host else []), *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def cases(path: str) -> Iterator[Case]:
    """All kinds; what stands in the bodies is a request that the port would do something for."""
    hidden = HIDDEN_REGISTRATION if path in MANAGEMENT else HIDDEN
    for kind in (upgrades, encodings, lengths, chunks, trailers):
        yield from kind(path, hidden)
    yield from heads(path)
    yield from conversations(path)
    yield from uploads(path)


def upgrades(path: str, hidden: bytes) -> Iterator[Case]:
    """Offers to upgrade, with bodies: the message is an ordinary one."""
    size = f"Content-Length: {len(hidden)}"
    h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    websocket = ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    for name, lines in (
        ("h2c", h2c),
        ("websocket", websocket),
        ("unknown", ("Connection: upgrade", "Upgrade: x")),
    ):
        whole = message(path, *lines, size, body=hidden)
        yield Case(f"upgrade to {name}", whole, echo=hidden)
        yield Case(f"upgrade to {name}, its body later", whole, echo=hidden, in_pieces=True)
        yield Case(f"upgrade to {name}, then a request", whole + PLAIN, answers=2, echo=hidden)
        pieces = message(path, *lines, "Transfer-Encoding: chunked", body=chunked(hidden[:9], hidden[9:]))
        yield Case(f"upgrade to {name}, chunked", pieces, echo=hidden)
        bare = message(path, *lines, "Content-Length: 0")
        yield Case(f"upgrade to {name} without a body, then a request", bare + PLAIN, answers=2, echo=b"")
    yield Case("CONNECT", message("x:80", size, body=hidden, method="CONNECT"), "refused")


def encodings(path: str, hidden: bytes) -> Iterator[Case]:
    """Transfer-Encoding in ways that two servers could read differently."""
    body, size = chunked(hidden), f"Content-Length: {len(hidden)}"
    for each in ("chunked, chunked", "gzip, chunked", "chunked, gzip", "identity", "xchunked", "chunked;q=1"):
        yield Case(f"encoding {each}", message(path, f"Transfer-Encoding: {each}", body=body), "refused")
    for each in ("\x0bchunked", "\x00chunked", "chunked\x00", '"chunked"'):
        yield Case(f"encoding {each!r}", message(path, f"Transfer-Encoding: {each}", body=body), "refused")
    for each in ("Chunked", "chunked ", "\tchunked"):
        whole = message(path, f"Transfer-Encoding: {each}", body=body)
        yield Case(f"encoding {each!r}", whole, "either")
    both = message(path, "Transfer-Encoding: chunked", size, body=body)
    yield Case("encoding and length", both, "refused")
    yield Case("length and encoding", message(path, size, "Transfer-Encoding: chunked", body=body), "refused")
    twice = message(path, "Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=body)
    yield Case("two encodings", twice, "refused")
    old = both.replace(b"HTTP/1.1", b"HTTP/1.0").replace(size.encode() + b"\r\n", b"")
    yield Case("an encoding in HTTP/1.0", old, "either")
    folded = message(path, "Transfer-Encoding:\r\n chunked", body=body)
    yield Case("a folded encoding", folded, "either")
    spaced = message(path, "Transfer-Encoding : chunked", size, body=hidden)
    yield Case("a blank before the colon", spaced, "refused")


def lengths(path: str, hidden: bytes) -> Iterator[Case]:
    """Content lengths that are none, or huge."""
    size = str(len(hidden))
    for each in ("9" * 5001, "9" * 19, "18446744073709551616", "1" * 60_000):
        yield Case(f"length of {len(each)} digits", message(path, f"Content-Length: {each}"), "refused")
    of_size = f"+{size}", f"{size}, 0", f"{size} {size}", f"{size}\0"
    for each in ("-1", "0x10", "1e3", "1_0", "", "²", *of_size):
        whole = message(path, f"Content-Length: {each}", body=hidden)
        yield Case(f"length {each!r}", whole, "refused")
    two = message(path, f"Content-Length: {size}", "Content-Length: 0", body=hidden)
    yield Case("two lengths", two, "refused")
    zeros = message(path, f"Content-Length: {'0' * 50}{size}", body=hidden)
    yield Case("a length with zeros before it", zeros, "either")
    longer = message(path, f"Content-Length: {size}", "Connection: close", body=hidden + b"!" * 2000)
    yield Case("more than its length, then the end", longer, echo=hidden)


def chunks(path: str, hidden: bytes) -> Iterator[Case]:
    """Chunk sizes and what stands around chunks."""

    def of(name: str, body: bytes, expected: Outcome = "refused", echo: bytes | None = None) -> Case:
        whole = message(path, "Transfer-Encoding: chunked", body=body)
        return Case(f"chunks: {name}", whole, expected, echo=echo)

    size = b"%x" % len(hidden)
    ordinary = size + b"\r\n" + hidden + b"\r\n0\r\n\r\n"
    yield of("one", ordinary, "answered", hidden)
    yield of(
        "of two bytes", chunked(*(hidden[at : at + 2] for at in range(0, len(hidden), 2))), "answered", hidden
    )
    for each in (b"f" * 17, b"f" * 5001, b"7fffffffffffffff", b"-1", b"+5", b"0x5", b"5_0", b"", b" 5", b"g"):
        yield of(f"size {each[:20]!r} of {len(each)}", each + b"\r\n" + hidden + b"\r\n0\r\n\r\n", "either")
    refused = message(path, "Transfer-Encoding: chunked", body=b"8000000000000000\r\n")
    yield Case("chunks: nothing of 2^63", refused, "refused", behind=True)
    yield of("zeros before the size", b"0" * 5000 + ordinary, "either")
    yield of("an extension", size + b';a="b;c"\r\n' + hidden + b"\r\n0;x\r\n\r\n", "answered", hidden)
    yield of("an extension of 1 MB", size + b";" + b"a" * MIB + b"\r\n" + hidden + b"\r\n0\r\n\r\n", "either")
    yield of("a line feed in an extension", size + b";a\n" + hidden + b"\r\n0\r\n\r\n", "either")
    yield of("longer than said", b"5\r\n" + hidden + b"\r\n0\r\n\r\n", "refused")
    yield of("line feeds only", ordinary.replace(b"\r\n", b"\n"), "either")
    yield of("a NUL behind the size", size + b"\x00\r\n" + hidden + b"\r\n0\r\n\r\n", "refused")


def trailers(path: str, hidden: bytes) -> Iterator[Case]:
    """Lines behind a chunked body: they are not of the head."""
    trailer = b"x-request-id: from-a-trailer\r\nauthorization: Bearer x\r\nts_request_sequence_id: s\r\n"

    def of(name: str, trailer: bytes, expected: Outcome, after: bytes = b"", answers: int = 1) -> Case:
        body = chunked(hidden, trailer=trailer) + after
        whole = message(path, "Transfer-Encoding: chunked", "Trailer: x-a", body=body)
        return Case(f"trailers: {name}", whole, expected, answers, echo=hidden, behind=True)

    yield of("some", trailer, "answered")
    yield of("some, then a request", trailer, "answered", PLAIN, 2)
    yield of("a length", b"Content-Length: 5\r\n", "either", PLAIN, 2)
    yield of("1 MB in one", b"x-a: " + b"a" * MIB + b"\r\n", "refused")
    yield of("1 MB in many", b"x-a: 1\r\n" * (MIB // 8), "refused")
    yield of("no header", b"nothing\r\n", "either")


def heads(path: str) -> Iterator[Case]:
    """Hosts, NULs, methods, versions."""
    yield Case("no Host", message(path, "Content-Length: 0", host=""), "refused")
    yield Case("two Hosts", message(path, "Host: y", "Content-Length: 0"), "refused")
    yield Case("no Host in HTTP/1.0", b"POST %b HTTP/1.0\r\nContent-Length: 0\r\n\r\n" % path.encode())
    for name, line in (
        ("NUL in a value", "X-A: a\x00b"),
        ("NUL in a name", "X-\x00A: b"),
        ("no colon", "X-A"),
        ("a bare line feed", "X-A: b\nX-B: c"),
        ("a bare return", "X-A: b\rX-B: c"),
        ("no name", ": b"),
        ("folded", "X-A: b\r\n c"),
        ("a blank first", " X-A: b"),
        ("70 KB", "X-A: " + "a" * 70_000),
    ):
        yield Case(f"header: {name}", message(path, line, "Content-Length: 0"), "either")
    yield Case("NUL in the target", message(path + "\x00", "Content-Length: 0"), "refused")
    yield Case("NUL for a request", b"\x00" * 50 + b"\r\n\r\n", "refused")
    yield Case("a method of 10 KB", message(path, method="A" * 10_000), "refused")
    yield Case("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9, "refused")
    yield Case("HTTP/0.9", b"GET /\r\n\r\n", "refused")
    yield Case("HTTP/2.0", PLAIN.replace(b"HTTP/1.1", b"HTTP/2.0"), "refused")
    yield Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200, "refused")
    yield Case("empty lines first", b"\r\n\r\n\r\n" + PLAIN)
    yield Case("32 KiB of empty lines first", b"\r\n" * (1 << 14) + PLAIN)
    yield Case("80 kB of empty lines", b"\r\n" * 40_000, "refused")
    yield Case("1 MiB of empty lines", b"\r\n" * (MIB // 2), "refused")
    yield Case("empty lines behind a request", PLAIN + b"\r\n" * 40_000, "either", answers=2)
    yield Case("HEAD with a body", message(path, "Content-Length: 3", body=b"abc", method="HEAD"), head=True)
    yield Case("GET with a body", message("/api-description", "Content-Length: 3", body=b"abc", method="GET"))


def conversations(path: str) -> Iterator[Case]:
    one = message(path, "Content-Length: 2", body=b"hi")
    yield Case("twenty in a row", one * 20, answers=20, echo=b"hi")
    yield Case("mixed in a row", (one + PLAIN) * 5, answers=10, echo=b"hi")
    yield Case("a bad one behind good ones", one * 3 + b"BAD\r\n\r\n", "either", answers=4, echo=b"hi")
    expect = message(path, "Content-Length: 2", "Expect: 100-continue", body=b"hi")
    yield Case("expects to be told to go on", expect, echo=b"hi")
    yield Case("a client that says no more", one, echo=b"hi", half_close=True)
    yield Case("no more in the head", one[:20], "either", half_close=True)
    yield Case("no more in the body", one[:-1], "either", half_close=True)
    cut = message(path, "Transfer-Encoding: chunked", body=b"5\r\nhel")
    yield Case("no more in a chunk", cut, "either", half_close=True)


def uploads(path: str) -> Iterator[Case]:
    """Large bodies that most paths do not read: a client that sends all of one first gets the answer."""
    size = f"Content-Length: {len(LARGE)}"
    last = message(path, size, "Connection: close", body=LARGE)
    nowhere = message("/nonesuch", size, body=LARGE)
    yield Case("a large body", message(path, size, body=LARGE), echo=LARGE, taken=True)
    yield Case("a large body at last", last, echo=LARGE, taken=True)
    yield Case("a large body to nowhere", nowhere, taken=True)
    yield Case("a large body to nowhere behind two", PLAIN * 2 + nowhere, answers=3, taken=True)


def run(report: Report, seconds: float) -> None:
    """All cases at each port as often as there is time, once at least; then clients that take their time."""
    for front_ends in (1, 2):
        what = "one process" if front_ends == 1 else f"{front_ends} front ends"
        with target(front_ends) as server:
            server.registered("echo.mar")
            before = Holdings.of(server)
            patient = seconds >= PATIENT_SECONDS
            end = time.monotonic() + seconds / 2 - 2 * CUT_OFF * patient
            converse(report, server, what, end, paths_of(server, front_ends > 1, patient))
            over_http2(report, server, what)
            if patient:
                dawdlers(report, server, what)
            else:
                report.figure(f"{what}: slow clients", f"only in longer runs: they are given {CUT_OFF:g} s")
            stubborn(report, server, what, patient=patient)
            after_all(report, server, what, before)


def paths_of(server: Server, front_ends: bool, patient: bool = True) -> list[tuple[int, str]]:
    """Paths of the short and of the long way. A short run asks front ends only for those of inference."""
    inference = [(server.port, "/predictions/echo"), (server.port, "/ping")]
    if front_ends:
        return inference
    management = server.port_of("management")
    metrics = server.port_of("metrics")
    others = [(management, "/models"), (management, "/api-description"), (metrics, "/metrics")]
    return [*inference, *others] if patient else others


def converse(report: Report, server: Server, what: str, end: float, places: list[tuple[int, str]]) -> None:
    count: Counter[str] = Counter()
    with ThreadPoolExecutor(16) as pool:
        while not count or time.monotonic() < end:
            requests = [(port, path, case) for port, path in places for case in cases(path)]
            for (_, path, case), wrong in zip(
                requests, pool.map(lambda each: meet(*each), requests), strict=True
            ):
                count["conversations"] += 1
                if wrong:
                    report.failures.append(f"{what}, {path}, {case.name}: {wrong}")
            if report.failures:
                break
    report.figure(f"{what}: conversations", count["conversations"])


def meet(port: int, path: str, case: Case) -> str:
    """Sends a case's bytes; what was wrong with what came back, or nothing."""
    try:
        answers, ended = exchange(port, case)
    except Malformed as error:
        return f"no well-formed answer: {error}"
    if ended is None:
        return f"{len(answers)} answers, and then bytes that are none"
    statuses = [answer.status for answer in answers]
    if any(status >= 500 and status not in {501, 505} for status in statuses):
        return f"answered {statuses}"
    if case.expected == "refused":
        lowest = 200 if case.behind and path != "/predictions/echo" else 400
        fine = len(statuses) <= 1 and ended and all(lowest <= status for status in statuses)
        return (
            "" if fine and statuses else f"answered {statuses}, {'ended' if ended else 'open'}, not refused"
        )
    if case.expected == "either":
        return (
            "" if len(statuses) <= case.answers else f"answered {statuses}, at most {case.answers} are right"
        )
    # An error may end the connection before its time, and says so.
    refused = ended and 0 < len(statuses) < case.answers and answers[-1].closes and statuses[-1] >= 400
    if len(statuses) != case.answers and not refused:
        return f"answered {statuses}, {case.answers} were asked for"
    if case.echo is not None and path == "/predictions/echo" and answers[0].body != case.echo:
        return f"{answers[0].status} {answers[0].body[:200]!r} instead of its body"
    return ""


def exchange(port: int, case: Case) -> tuple[list[Answer], bool | None]:
    """The answers, and whether the server ended the connection; None if it says more than answers.

    Raises Malformed.
    """
    received, answers, ended = bytearray(), [], False
    with connect(port, PATIENCE) as connection:
        try:
            for piece in pieces_of(case):
                connection.sendall(piece)
            if case.half_close:
                connection.shutdown(socket.SHUT_WR)
        except ConnectionError as error:
            if case.taken:
                raise Malformed(error) from error
        deadline = time.monotonic() + (PATIENCE if case.expected != "either" or case.half_close else 1.0)
        while not ended and time.monotonic() < deadline:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = connection.recv(1 << 16)
            except socket.timeout:  # noqa: UP041 - another class before Python 3.11? no: 3.10 needs this name
                break
            except ConnectionError:
                data = b""
            received += data
            ended = not data
            while (answer := take_answer(received, ended=ended, head=case.head)) is not None:
                answers.append(answer)
                if len(answers) >= case.answers and case.expected != "refused":
                    deadline = min(deadline, time.monotonic() + AFTERWARDS)
    return answers, None if received else ended


def pieces_of(case: Case) -> Iterator[bytes]:
    """What is sent, with a pause where the case wants one."""
    head, end, rest = case.sent.partition(b"\r\n\r\n")
    if not case.in_pieces:
        yield case.sent
        return
    yield head + end
    time.sleep(PIECE_SECONDS)
    yield rest


def over_http2(report: Report, server: Server, what: str) -> None:
    """On the port of gRPC, what breaks the rules is refused with its code, and floods are cut off."""
    port, count = frames.port_of(server), 0
    for name, sent, expected in frames.conversations():
        count += 1
        heard = frames.talk(port, sent)
        report.hold(frames.is_right(heard, expected), f"{what}, gRPC, {name}: {heard[-3:]}")
    report.figure(f"{what}: conversations with gRPC's port", count)
    with ThreadPoolExecutor(FLOODING) as pool:
        for kind in frames.FLOODS:
            before = cpu_seconds(server)
            over = list(pool.map(frames.flood, [port] * FLOODING, [kind] * FLOODING))
            report.figure(
                f"{what}: {FLOODING} floods of {kind}", f"{cpu_seconds(server) - before:.2f} s of CPU"
            )
            report.hold(all(over), f"{what}: {over.count(False)} floods of {kind} were not ended")


def cpu_seconds(server: Server) -> float:
    """What the server and its front ends have used."""
    return sum(sum(process.cpu_times()[:2]) for process in server.processes())


def dawdlers(report: Report, server: Server, what: str) -> None:
    """Heads and bodies that come byte by byte, and connections that say nothing, are cut off (F15)."""
    head = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    starts = {
        "a slow head": head[:20],
        "a slow body": head,
        "a slow chunk": head.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked") + b"ffff\r\n",
    }
    with contextlib.ExitStack() as stack:
        waiting = {}
        for name, start in starts.items():
            for port in {port for port, _ in paths_of(server, "front" in what)}:
                connection = stack.enter_context(connect(port, PATIENCE))
                connection.sendall(start)
                connection.setblocking(False)
                waiting[connection] = f"{name} on port {port}"
        began, longest = time.monotonic(), 0.0
        while waiting and time.monotonic() - began < CUT_OFF:
            for connection in list(waiting):
                if was_cut_off(connection):
                    del waiting[connection]
                    longest = time.monotonic() - began
            time.sleep(DRIBBLE)
    report.figure(f"{what}: slow clients cut off after at most", f"{longest:.1f} s")
    report.failures += [f"{what}: {name} was not cut off in {CUT_OFF:g} s" for name in waiting.values()]


def was_cut_off(connection: socket.socket) -> bool:
    """Sends one more byte; whether the other side has ended the connection."""
    try:
        connection.send(b"x")
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def stubborn(report: Report, server: Server, what: str, *, patient: bool) -> None:
    """What the server holds for clients that ask and ask and read nothing is bounded, others are served
    meanwhile, and they are cut off, if there is time to wait for it, or gone soon after they leave.
    """
    request = post("/predictions/echo", b"n" * 1_000_000)
    before = Holdings.of(server).memory
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(server.port, small=True)) for _ in range(STUBBORN)]
        most = 0
        for connection in waiting:
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                for _ in range(20):
                    connection.sendall(request)
            most = max(most, Holdings.of(server).memory)
        report.hold(server.predict("echo", b"x").content == b"x", f"{what}: others are not served")
        grown = most - before
        report.figure(f"{what}: held for 8 clients that do not read", f"{grown / MIB:.0f} MiB")
        report.hold(grown <= HELD_BY_WHO_DOES_NOT_READ, f"{what}: {grown / MIB:.0f} MiB are held for them")
        sockets = server.sockets_to(waiting)
        report.hold(len(sockets) == STUBBORN, f"{what}: {len(sockets)} of {STUBBORN} are connected")
        if patient:
            wait_for_the_end(
                report, server, f"{what}: clients that do not read are cut off", sockets, CUT_OFF
            )
    if not patient:
        wait_for_the_end(report, server, f"{what}: clients that left are gone", sockets, CHECK_SECONDS + BUSY)


def wait_for_the_end(report: Report, server: Server, what: str, sockets: set[str], seconds: float) -> None:
    """The server closes these sockets within ``seconds``."""
    began = time.monotonic()
    while (left := sockets & server.sockets()) and time.monotonic() - began < seconds:
        time.sleep(0.1)
    report.figure(f"{what} after", f"{time.monotonic() - began:.1f} s")
    report.hold(not left, f"{what}: {len(left)} of {len(sockets)} were not in {seconds:g} s")


def after_all(report: Report, server: Server, what: str, before: Holdings) -> None:
    """The server lives, nothing hidden was a request, nothing surprised it."""
    wait_until(lambda: quiet(server), "it is quiet")
    time.sleep(0.5)  # the access log is written a few times a second
    requests = [line for line in server.home.log("access_log.log").splitlines() if MARK in line]
    report.figure(f"{what}: requests from within bodies", len(requests))
    report.hold(
        not requests, f"{what}: {len(requests)} requests from within bodies, the first: {requests[:1]}"
    )
    names = [model["modelName"] for model in server.management.get("/models").json()["models"]]
    report.hold(names == ["echo"], f"{what}: the models are {names}")
    report.hold(server.predict("echo", b"x").content == b"x", f"{what}: no longer serves")
    traces = tracebacks(server)
    report.figure(f"{what}: tracebacks in the log", len(traces))
    report.hold(not traces, f"{what}: tracebacks: {Counter(traces).most_common(3)}")
    after = Holdings.of(server)
    report.hold(
        after.descriptors <= before.descriptors + 10,
        f"{what}: descriptors {before.descriptors} -> {after.descriptors}",
    )
