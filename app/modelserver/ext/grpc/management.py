"""TorchServe's management service (reference 20), on top of the management API over REST.

Unlike in TorchServe, a list without a limit has 100 models (TorchServe's is empty), all errors have a text,
and a call that ends early leaves no change half done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from modelserver.ext.grpc.messages import AnyMessage, message
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from starlette.responses import Response

    from modelserver.ext.grpc.call import GrpcCall
    from modelserver.ext.grpc.calls import Method

    _Act = Callable[[AnyMessage, GrpcCall], Coroutine[Any, Any, Response]]


NAME = "org.pytorch.serve.grpc.management.ManagementAPIsService"

_Answer = message("org.pytorch.serve.grpc.management.ManagementResponse")


class ManagementService:
    """Registers, lists, describes, scales, sets defaults, unregisters.

    Args:
        services: with what REST's management API does.
    """

    def __init__(self, services: Services) -> None:
        self._api = services.management
        self._finishing = Uninterrupted()

    @property
    def methods(self) -> Mapping[str, Method]:
        return {
            "DescribeModel": self._method(self._describe, _text),
            "ListModels": self._method(self._list, _text),
            "RegisterModel": self._method(self._register, _status),
            "ScaleWorker": self._method(self._scale, _status),
            "SetDefault": self._method(self._set_default, _status),
            "UnregisterModel": self._method(self._unregister, _status),
        }

    def _method(self, act: _Act, read: Callable[[Response], str]) -> Method:
        async def method(request: AnyMessage, call: GrpcCall) -> AnyMessage:
            return _Answer(msg=read(await self._finishing.run(act(request, call))))

        return method

    async def _describe(self, request: AnyMessage, _: GrpcCall) -> Response:
        return await self._api.describe_by(
            request.model_name, request.model_version or None, customized=request.customized
        )

    async def _list(self, request: AnyMessage, _: GrpcCall) -> Response:
        return self._api.list_by(Parameters(_fields(request)))

    async def _register(self, request: AnyMessage, call: GrpcCall) -> Response:
        # Unlike over REST, the call waits for workers only if the client requests it (reference 20).
        parameters = {**_positive_fields(request), "synchronous": request.synchronous}
        return await self._api.register_by(Parameters(parameters, call.head.headers))

    async def _scale(self, request: AnyMessage, _: GrpcCall) -> Response:
        version = request.model_version or None
        return await self._api.scale_by(Parameters(_positive_fields(request)), request.model_name, version)

    async def _set_default(self, request: AnyMessage, _: GrpcCall) -> Response:
        return await self._api.set_default(request.model_name, request.model_version)

    async def _unregister(self, request: AnyMessage, _: GrpcCall) -> Response:
        return await self._api.unregister(request.model_name, request.model_version or None)


def _text(response: Response) -> str:
    return bytes(response.body).decode().rstrip()


def _status(response: Response) -> str:
    status: str = json.loads(bytes(response.body))["status"]
    return status


def _positive_fields(request: AnyMessage) -> dict[str, Any]:
    """The fields without negative numbers, which mean the default here."""
    fields = _fields(request).items()
    return {name: value for name, value in fields if not isinstance(value, int) or value > 0}


def _fields(request: AnyMessage) -> dict[str, Any]:
    """The fields that are not zero or empty: those mean the default, as in TorchServe."""
    return {field.name: value for field, value in request.ListFields()}


_T = TypeVar("_T")


class Uninterrupted:
    """Finishes changes even if the client disconnects or its deadline passes."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, act: Coroutine[Any, Any, _T]) -> _T:
        """The result of ``act``, or its error; cancelling the wait does not cancel it."""
        task = asyncio.ensure_future(act)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it
