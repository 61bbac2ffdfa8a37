"""The standard reflection service: the services of a port, and the files that describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.grpc.messages import POOL, message
from modelserver.ext.grpc.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from google.protobuf.descriptor import FileDescriptor

    from modelserver.ext.grpc.call import GrpcCall
    from modelserver.ext.grpc.calls import Method
    from modelserver.ext.grpc.messages import AnyMessage

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class ReflectionService:
    """Tells of the services with these names, in one of the versions of its protocol."""

    def __init__(self, name: str, services: Collection[str]) -> None:
        self._services = sorted(services)
        self._answer = message(f"{name.rpartition('.')[0]}.ServerReflectionResponse")

    @property
    def methods(self) -> Mapping[str, Method]:
        return {"ServerReflectionInfo": self.respond}

    async def respond(self, requests: AsyncIterator[AnyMessage], _: GrpcCall) -> AsyncIterator[AnyMessage]:
        """An answer to each request."""
        async for request in requests:
            yield self._answer(valid_host=request.host, original_request=request, **self._about(request))

    def _about(self, request: AnyMessage) -> dict[str, object]:
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                return {"list_services_response": {"service": [{"name": name} for name in self._services]}}
            if kind == "file_by_filename":
                return _files(POOL.FindFileByName(request.file_by_filename))
            if kind == "file_containing_symbol":
                return _files(_file_of(request.file_containing_symbol))
            if kind == "all_extension_numbers_of_type":
                name = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type).full_name
                return {"all_extension_numbers_response": {"base_type_name": name}}
        except KeyError:
            pass
        # Our messages have no extensions.
        return {"error_response": {"error_code": StatusCode.NOT_FOUND, "error_message": "not found"}}


def _file_of(symbol: str) -> FileDescriptor:
    """The file with a service, method, message, enum or field. Raises KeyError."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        return POOL.FindMethodByName(symbol).containing_service.file


def _files(first: FileDescriptor) -> dict[str, object]:
    """A file, and those that it imports."""
    contents: dict[str, bytes] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file.name not in contents:
            contents[file.name] = file.serialized_pb
            waiting += file.dependencies
    return {"file_descriptor_response": {"file_descriptor_proto": list(contents.values())}}
