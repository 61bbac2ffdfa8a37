"""A collector for tests: an OTLP receiver over HTTP that decodes the published messages, or hangs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE = 20.0


class Received:
    """A span; ids are in hexadecimal, times in nanoseconds since 1970, links (trace id, span id)."""

    def __init__(self, span, service: str) -> None:
        self.name: str = span.name
        self.service = service
        self.kind: int = span.kind
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.trace_state: str = span.trace_state
        self.start: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.attributes = {each.key: _value(each.value) for each in span.attributes}
        self.links = [(each.trace_id.hex(), each.span_id.hex()) for each in span.links]
        self.events = [each.name for each in span.events]
        self.is_failed: bool = span.status.code == 2
        self.message: str = span.status.message

    def __repr__(self) -> str:
        return f"{self.name} {self.trace_id[:6]} {self.span_id} < {self.parent_id} {self.attributes}"


class Collector:
    """What came so far. While ``gate`` is closed, nothing is answered."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Received] = []
        self.metrics: dict[str, Any] = {}
        self.requests = 0
        self.gate = threading.Event()
        self.gate.set()

    def trace(self, trace_id: str, *names: str) -> list[Received]:
        """The spans of a trace, once it has spans of these names."""

        def whole() -> bool:
            missing = list(names)
            for each in self.of(trace_id):
                if each.name in missing:
                    missing.remove(each.name)
            return not missing

        self.wait(whole, f"{names} in {trace_id}")
        return self.of(trace_id)

    def of(self, trace_id: str) -> list[Received]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]

    def wait(self, happened: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"waited in vain: {what}; {self.spans[-20:]}"
            time.sleep(0.01)

    def take(self, path: str, body: bytes) -> None:
        self.requests += 1
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = {each.key: _value(each.value) for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [Received(span, attributes["service.name"]) for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics.update({metric.name: metric for metric in scope.metrics})


def _value(value):
    return getattr(value, value.WhichOneof("value"))


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.gate.wait(60)
            made.take(self.path, body)
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.gate.set()
            server.shutdown()
            thread.join()


def environment(at: Collector, **variables: str) -> dict[str, str]:
    """What makes a process export to it soon."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": at.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        **variables,
    }
