"""Clients for the server's gRPC services, from its own descriptors, and a server that has them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from tests.e2e.serving import PATIENCE, Home, Server, free_port

from modelserver.ext.grpc.messages import message, message_class, service

TORCHSERVE = "org.pytorch.serve.grpc."
INFERENCE = f"{TORCHSERVE}inference."
MANAGEMENT = f"{TORCHSERVE}management."


def grpc_server(folder: Path, model_store: Path, **settings: object) -> Server:
    """A server with gRPC on ports of its own, which stand in ``settings``."""
    return Server(Home(folder), model_store, (), {**grpc_settings(), **settings})


def grpc_settings() -> dict[str, object]:
    ports = {f"grpc_{side}_port": free_port() for side in ("inference", "management")}
    return {"enable_grpc_api": "true", **ports}


def address_of(server: Server, side: str = "inference") -> str:
    return f"127.0.0.1:{server.settings[f'grpc_{side}_port']}"


def channel(server: Server, side: str) -> grpc.Channel:
    """A connection to one of the two ports, without limits of the client's own."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(address_of(server, side), options)


class Method:
    """A method of a service; its calls end after a while, unless a test gives them another timeout."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, request: Any, timeout: float = PATIENCE, **more: Any) -> Any:
        return self._call(request, timeout=timeout, **more)

    def future(self, request: Any, timeout: float = PATIENCE, **more: Any) -> Any:
        return self._call.future(request, timeout=timeout, **more)


def stub(to: grpc.Channel, name: str) -> Any:
    """The methods of a service; each takes a message."""
    methods = {}
    for method in service(name).methods:
        kinds = [
            "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
        ]
        call = getattr(to, "_".join(kinds))(
            f"/{name}/{method.name}",
            request_serializer=lambda value: value if isinstance(value, bytes) else value.SerializeToString(),
            response_deserializer=message_class(method.output_type).FromString,
        )
        methods[method.name] = Method(call)
    return SimpleNamespace(**methods)


def predict(model: str, version: str = "", **data: bytes) -> Any:
    return message(f"{INFERENCE}PredictionsRequest")(model_name=model, model_version=version, input=data)


def manage(name: str, /, **fields: Any) -> Any:
    return message(f"{MANAGEMENT}{name}Request")(**fields)


def oip(name: str, /, **fields: Any) -> Any:
    return message(f"inference.{name}")(**fields)


def ending(call: Any) -> tuple[str, str]:
    """Name of the code, and text, of the error that the call ends with."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("the call did not fail")
