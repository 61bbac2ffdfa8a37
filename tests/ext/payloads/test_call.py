"""One request and its answer, on their way into the payload log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.ext.payloads.call import LoggedCall
from modelserver.ext.payloads.event import Origin
from modelserver.ext.payloads.log import PayloadLimits, PayloadLog
from modelserver.ext.payloads.sink import Sink

if TYPE_CHECKING:
    from tests.ext.payloads.sinks import SinkServer


@pytest.mark.parametrize(
    ("mode", "logged"),
    [("all", ["request", "response"]), ("request", ["request"]), ("response", ["response"])],
)
async def test_mode_decides_what_is_logged(sink: SinkServer, mode: str, logged: list[str]) -> None:
    """Requests, answers, or both; with one id, which is the client's Ce-Id if that is usable."""
    log = PayloadLog(Sink(sink.url, 5.0), Origin("test"), mode)
    log.start()
    call = LoggedCall(log, [(b"Ce-Id", b"mine")], (("modelname", "m"), ("modelversion", "")))
    call.request(b"question", "text/plain")
    call.part(b"ans")
    call.part(b"wer")
    parts = call.parts()
    if parts is not None:
        call.response("text/html", b"".join(parts), "batch-1")
    await log.close(5.0)

    assert sorted(e.kind for e in sink.events) == logged
    assert {e.heads["ce-id"] for e in sink.events} == {"mine"}
    assert all(e.heads["ce-modelname"] == "m" and "ce-modelversion" not in e.heads for e in sink.events)
    for e in sink.events:
        if e.kind == "response":
            assert (e.body, e.heads["content-type"]) == (b"answer", "text/html")
            assert e.heads["ce-batchid"] == "batch-1"


async def test_long_answers_are_not_kept(sink: SinkServer) -> None:
    """An answer in parts that is too large in all is counted, and its parts are not kept meanwhile."""
    log = PayloadLog(Sink(sink.url, 5.0), Origin("test"), "all", PayloadLimits(body=10))
    log.start()
    call = LoggedCall(log, [(b"ce-id", b"bad id")], ())
    for _ in range(3):
        call.part(bytes(6))

    assert call.parts() is None
    assert call._parts == [bytes(6)] or call._parts == []
    assert log.counts()["too_large"] == 1
    assert len(call.id) == 36
    await log.close(5.0)
