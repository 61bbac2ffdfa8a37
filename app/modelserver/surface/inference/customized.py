"""A handler's own metadata: ``GET /models/{m}?customized=true`` (reference 5.4)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import Any, cast

from modelserver.engine.batching.queue import UnsharedKey
from modelserver.engine.batching.request import Request
from modelserver.engine.ids import make_uuid
from modelserver.engine.wire.messages import DESCRIBE, Answer, Row
from modelserver.errors import InternalError, ResponseTimeout, ServiceUnavailable
from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.api")

TOO_LATE = "Failed to get customized model matadata."  # TorchServe's spelling


@dataclass(frozen=True, slots=True)
class Description:
    """The handler's metadata, None if it returned nothing, and the answer with its status and headers."""

    metadata: dict[str, Any] | None
    answer: Answer


async def fetch_description(model: ModelVersion) -> Description:
    """Asks the handler through a worker, in a separate batch that does not wait for others.

    Metadata that is not a JSON object becomes ``{}``, with a warning in the log.

    Raises:
        ServiceUnavailable: no worker, or the queue is full; TorchServe's text.
        InternalError: no reply within the response timeout.
        HandlerError: the handler failed.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    request_id = make_uuid()
    rows = [Row(request_id, 0, DESCRIBE)]
    request = Request(request_id, rows, [b""], time.monotonic(), key=UnsharedKey())
    request.on_done = lambda _: None if ended.done() else ended.set_result(None)
    try:
        model.pool.submit(request)
    except ServiceUnavailable as refusal:
        raise _no_worker(model) from refusal
    try:
        await asyncio.wait_for(ended, model.options.response_timeout)
    except asyncio.TimeoutError:
        raise InternalError(TOO_LATE) from None
    finally:
        model.pool.cancel(request)
    return _read(model, request)


def _read(model: ModelVersion, request: Request) -> Description:
    if isinstance(request.error, ServiceUnavailable):
        raise _no_worker(model)
    if isinstance(request.error, ResponseTimeout):
        raise InternalError(TOO_LATE)
    failure = request.failure()
    if failure is not None:
        try:
            raise failure
        finally:
            # The error refers to this frame: they would stay until the garbage collector runs.
            failure = request.error = None
    ((answer, content),) = cast("list[tuple[Answer, bytes]]", request.answers)
    return Description(_metadata(model, content), answer)


def _metadata(model: ModelVersion, content: bytes) -> dict[str, Any] | None:
    if not content:
        return None
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError):
        metadata = None
    if isinstance(metadata, dict):
        return metadata
    _log.warning("The handler of %s returned metadata that is not a JSON object", model.name)
    return {}


def _no_worker(model: ModelVersion) -> ServiceUnavailable:
    return ServiceUnavailable(
        f'Model "{model.name}" has no worker to serve describe request. '
        "Please use scale workers API to add workers."
    )
