"""A gRPC server of the library that gives back what it gets."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

_SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Mirror(grpc.GenericRpcHandler):
    """Gives back what it gets, or ``answer``, after ``delay`` seconds, or refuses; keeps what it got."""

    def __init__(self, delay: float, answer: bytes | None) -> None:
        self.messages: list[bytes] = []
        self.metadata: list[dict[str, Any]] = []
        self._delay = delay
        self._answer = answer

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        def answer(sent: bytes, context: grpc.ServicerContext) -> bytes:
            self.messages.append(sent)
            self.metadata.append(dict(context.invocation_metadata()))
            if details.method == "/refuse":
                context.abort(grpc.StatusCode.NOT_FOUND, "nothing h\u00e9re")
            time.sleep(self._delay)
            return sent if self._answer is None else self._answer

        return grpc.unary_unary_rpc_method_handler(answer)


@contextlib.contextmanager
def mirroring(
    delay: float = 0.0, answer: bytes | None = None, tls: Any = None
) -> Iterator[tuple[Mirror, int]]:
    """The mirror, and its port."""
    mirror = Mirror(delay, answer)
    server = grpc.server(ThreadPoolExecutor(4), [mirror], options=_SIZES)
    add = server.add_insecure_port if tls is None else lambda place: server.add_secure_port(place, tls)
    port = add("127.0.0.1:0")
    server.start()
    yield mirror, port
    server.stop(None).wait()
