"""``/recording``: requests and answers as they come and go, for ``modelserver record``, and its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response, StreamingResponse

from modelserver.errors import BadRequest, ResourceNotFound
from modelserver.ext.recording.recorder import Recorder, Recording, Wanted
from modelserver.surface.api.descriptions import BINARY, STATUS, add, answers, errors, operation, query
from modelserver.surface.api.management import status

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from modelserver.models.registry import Registry

PATH = "/recording"


def add_recording(app: FastAPI, registry: Registry, recorder: Recorder) -> None:
    """Adds the route; the management token was checked before."""

    async def record(request: Request) -> Response:
        wanted = read_wanted(request)
        for name in wanted.models - registry.workflows.keys():
            registry.get(name)
        return RecordingResponse(recorder.start(wanted))

    async def end(_: Request) -> Response:
        if recorder.now is None:
            raise ResourceNotFound("Nobody is recording.")
        recorder.now.finish("interrupted")
        return status(200, "The recording ends when the requests that it has begun are answered")

    parameters = [
        query("model", "string", "A model or workflow to record; may be repeated. By default all."),
        query("header", "string", "A request header to record, too; may be repeated."),
        query("sample", "number", "The share of requests to record."),
        query("seconds", "number", "When to end."),
        query("requests", "integer", "After how many requests to end."),
    ]
    content = {"application/octet-stream": {"schema": BINARY}}
    responses = {
        "200": {"description": "Frames of requests and answers.", "content": content},
        **errors(400, 404, 409),
    }
    described = operation(
        "Management",
        "record",
        "Record requests and answers; for `modelserver record`.",
        responses,
        parameters=parameters,
    )
    add(app, PATH, record, post=described)
    ended = operation(
        "Management",
        "endRecording",
        "End the recording, as Ctrl-C in `modelserver record` does; its client gets what is left.",
        answers("The recording ends.", STATUS, 404),
    )
    add(app, PATH, end, delete=ended)


class RecordingResponse(StreamingResponse):
    """What is recorded, until its end or until the client leaves."""

    media_type = "application/octet-stream"

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.frames())
        self._recording = recording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not left to the framework, which may notice that a client has left only when it sends again.
        streaming = asyncio.ensure_future(self.stream_response(send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._recording.close()
            streaming.cancel()
            leaving.cancel()


async def _disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def read_wanted(request: Request) -> Wanted:
    """What the query asks for. Raises BadRequest."""
    given = request.query_params
    try:
        return Wanted(
            frozenset(given.getlist("model")),
            tuple(name.lower() for name in given.getlist("header")),
            float(given.get("sample", "1")),
            float(given["seconds"]) if "seconds" in given else None,
            int(given["requests"]) if "requests" in given else None,
        )
    except ValueError as error:
        raise BadRequest(f"A parameter is not a number: {error}.") from None
