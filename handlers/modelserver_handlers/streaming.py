"""Answers in parts: what a handler sends to its requests before it returns (reference 6.6, 13.2)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import GeneratorType
from typing import Any, Protocol


class ClientsGone(BaseException):
    """All clients of this call are gone: it is abandoned, running its ``finally`` blocks.

    Not an ``Exception``, so that a handler that catches its own failures does not continue in vain.
    """


class ResponseStream(Protocol):
    """Sends one call's parts to its requests."""

    def send(self, parts: Mapping[int, Any]) -> None:
        """Sends a part to each of these positions in the batch."""

    def is_cancelled(self, idx: int) -> bool:
        """Whether the client of request ``idx`` has gone."""

    def close(self) -> None:
        """The call is over: what is sent later is dropped."""


class _Ended:
    """The stream of a finished call, whose threads may still use it."""

    def send(self, parts: Mapping[int, Any]) -> None:
        """Ignores the parts."""

    def is_cancelled(self, idx: int) -> bool:
        return True

    def close(self) -> None:
        """Already closed."""


ENDED = _Ended()


def holds_generators(outputs: Sequence[Any]) -> bool:
    """Whether an answer among these is a generator."""
    return GeneratorType in map(type, outputs)


def exhaust(outputs: Sequence[Any], stream: ResponseStream) -> tuple[list[Any], dict[int, Exception]]:
    """Sends the parts that generators among the answers yield, one of each in turn.

    Returns the answers with the generators' return values in their places (no bytes for None), and the errors
    by position. Raises ClientsGone if all clients have disconnected.
    """
    ended = list(outputs)
    failed: dict[int, Exception] = {}
    running = {position: output for position, output in enumerate(ended) if type(output) is GeneratorType}
    try:
        while running:
            parts: dict[int, Any] = {}
            for position, generator in list(running.items()):
                try:
                    if not stream.is_cancelled(position):
                        parts[position] = next(generator)
                        continue
                    ended[position] = b""
                except StopIteration as end:
                    ended[position] = b"" if end.value is None else end.value
                except Exception as error:  # noqa: BLE001 - user code may raise anything
                    failed[position] = error
                running.pop(position).close()
            stream.send(parts)
    finally:
        for generator in running.values():
            generator.close()
    return ended, failed


def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str] | None, message: str, code: int, context: Any
) -> None:
    """Sends ``ret[idx]`` at once to each request of ``req_id_map`` (position to id), as a part of its answer.

    What the handler returns is the last part. Status, headers and content type must be set before the first
    part of a request. A ``code`` other than 200 makes ``message`` the error of the requests instead; their
    answers end when the handler returns. Requests whose client is gone, and those that are not in the batch,
    are skipped. Unlike in TorchServe, which keeps computing, this ends the handler's call when the
    clients of all requests are gone, unless the call started threads, which would run on beside the next
    batch.

    In a process with a ``LOCAL_RANK`` other than 0 nothing is sent.

    Raises RuntimeError outside of a call by the server.
    """
    if int(os.environ.get("LOCAL_RANK") or 0):
        return
    state = getattr(context, "_ms_state", None)
    stream: ResponseStream | None = getattr(state, "stream", None)
    if state is None or stream is None:
        raise RuntimeError("An answer can be sent in parts only while the server calls the handler.")
    positions = _positions(state.request_ids or {}, req_id_map or {})
    if code == 200:
        stream.send({position: ret[idx] for idx, position in positions.items()})
        return
    for position in positions.values():
        state.reject(position, message, code)


def _positions(request_ids: Mapping[int, str], named: Mapping[int, str]) -> dict[int, int]:
    """The handler's positions to those in the batch, matched by id."""
    if named is request_ids:
        return {idx: idx for idx in request_ids}
    by_id = {request_id: position for position, request_id in request_ids.items()}
    return {
        idx: idx if request_ids.get(idx) == request_id else by_id[request_id]
        for idx, request_id in named.items()
        if request_id in by_id
    }
