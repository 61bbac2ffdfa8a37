"""A gRPC server of the library that plays what TorchServe answered."""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import grpc
from tests.tools.migrate.sites import key_of

from modelserver.ext.grpc.messages import message_class
from modelserver.tools.migrate.calls import Response
from modelserver.tools.migrate.grpc_calls import METHOD, method_of


@contextlib.contextmanager
def playing_grpc(answers: Mapping[str, Response], token: str = "") -> Iterator[dict[str, int]]:
    """Both services, on two ports; what they do not know is NOT_FOUND. Gives the settings of the ports.

    Inference wants the ``token``, if one is given.
    """
    servers, ports = [], {}
    for side in ("inference", "management"):
        server = grpc.server(
            ThreadPoolExecutor(2), [_Player(f"grpc_{side}", answers, token if side == "inference" else "")]
        )
        ports[f"grpc_{side}_port"] = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
    try:
        yield ports
    finally:
        for server in servers:
            server.stop(None).wait()


class _Player(grpc.GenericRpcHandler):
    def __init__(self, port: str, answers: Mapping[str, Response], token: str) -> None:
        self._port = port
        self._token = token
        self._answers = answers

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        def play(sent: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            values = dict(details.invocation_metadata).get("authorization", "")
            if values != (f"Bearer {self._token}" if self._token else ""):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"not authorised by '{values}'")
            method = method_of(details.method)
            request = message_class(method.input_type).FromString(sent)
            fields = {each.name: value for each, value in request.ListFields() if each.name != "input"}
            query = f"?{urlencode(fields)}" if fields else ""
            body = request.input["data"] if "input" in method.input_type.fields_by_name else b""
            answer = self._answers.get(key_of(self._port, METHOD, f"{details.method}{query}", body))
            if answer is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "not recorded")
            content = answer.body or b""
            if answer.reason != "OK":
                context.abort(grpc.StatusCode[answer.reason], content.decode())
            made = message_class(method.output_type)()
            name = method.output_type.fields[0].name
            setattr(made, name, content if isinstance(getattr(made, name), bytes) else content.decode())
            yield made.SerializeToString()
            for _ in range(int(answer.headers.get("grpc-messages", 1)) - 1):
                yield b""

        return grpc.unary_stream_rpc_method_handler(play)
