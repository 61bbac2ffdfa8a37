"""``/recording``: requests and answers as they come and go, for ``modelserver record``, and its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response, StreamingResponse

from modelserver.errors import BadRequest, ResourceNotFound
from modelserver.ext.recording.recorder import LiveRecording, Recorder, RecordingOptions
from modelserver.surface.api.models import Status
from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from modelserver.surface.api.application import Application

PATH = "/recording"


class RecordQuery(BaseModel):
    """What is recorded, and how long."""

    model: Annotated[
        str, Field(None, description="A model or workflow to record; may be repeated. By default all.")
    ]
    header: Annotated[str, Field(None, description="A request header to record, too; may be repeated.")]
    sample: Annotated[float, Field(None, description="The share of requests to record.")]
    seconds: Annotated[float, Field(None, description="When to end.")]
    requests: Annotated[int, Field(None, description="After how many requests to end.")]


def add_routes(app: Application, services: Services, recorder: Recorder) -> None:
    """Adds the route; the management token was checked before."""

    async def record(request: Request) -> Response:
        options, registry = read_options(request), services.registry
        for name in options.models - registry.workflows.keys():
            registry.get(name)
        return RecordingResponse(recorder.start(options))

    async def end(_: Request) -> Response:
        if recorder.now is None:
            raise ResourceNotFound("Nobody is recording.")
        recorder.now.finish("interrupted")
        text = "The recording ends when the requests that it has begun are answered"
        return Response(pretty(Status(status=text)), media_type=JSON)

    add = app.section("Management")
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    add(
        record,
        f"post {PATH}",
        "record",
        "Record requests and answers; for `modelserver record`.",
        None,
        (400, 404, 409),
        "Frames of requests and answers.",
        query=RecordQuery,
        more={"responses": {"200": {"content": content}}},
    )
    text = "End the recording, as Ctrl-C in `modelserver record` does; its client gets what is left."
    add(end, f"delete {PATH}", "endRecording", text, Status, (404,))


class RecordingResponse(StreamingResponse):
    """The frames of a recording, until its end or until the client leaves."""

    media_type = "application/octet-stream"

    def __init__(self, recording: LiveRecording) -> None:
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


def read_options(request: Request) -> RecordingOptions:
    """What the query asks for. Raises BadRequest."""
    query = request.query_params
    try:
        return RecordingOptions(
            frozenset(query.getlist("model")),
            tuple(name.lower() for name in query.getlist("header")),
            float(query.get("sample", "1")),
            float(query["seconds"]) if "seconds" in query else None,
            int(query["requests"]) if "requests" in query else None,
        )
    except ValueError as error:
        raise BadRequest(f"A parameter is not a number: {error}.") from None
