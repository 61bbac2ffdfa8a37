"""Sinks for tests: HTTP servers that keep what they are sent, or misbehave as told."""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE = 20.0


@dataclass
class Received:
    """One POST; ``heads`` have lower-case names."""

    path: str
    heads: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """``request`` or ``response``."""
        return self.heads["ce-type"].rpartition(".")[2]


@dataclass
class SinkServer:
    """What came, and how it is answered: ``status`` after ``gate`` is open."""

    url: str = ""
    status: int = 202
    events: list[Received] = field(default_factory=list)
    connections: int = 0
    closes: bool = False
    gate: threading.Event = field(default_factory=threading.Event)

    def of(self, **heads: str) -> list[Received]:
        """The events with these attributes, without ``ce-``."""
        expected = {f"ce-{name}": value for name, value in heads.items()}
        return [event for event in list(self.events) if expected.items() <= event.heads.items()]

    def wait(self, count: int, **heads: str) -> list[Received]:
        """So many events with these attributes, in the order of their arrival."""
        wait_for(lambda: len(self.of(**heads)) >= count, f"{count} events, there are {self.events}")
        return self.of(**heads)


def wait_for(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def sink_server(tls: ssl.SSLContext | None = None) -> Iterator[SinkServer]:
    sink = SinkServer()
    sink.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            sink.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heads = {name.lower(): value for name, value in self.headers.items()}
            sink.events.append(Received(self.path, heads, body))
            sink.gate.wait(PATIENCE)
            with contextlib.suppress(OSError):
                self.send_response(sink.status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
            # Servers close idle connections without notice, too.
            self.close_connection = sink.closes

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    sink.url = f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}/events?key=1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
