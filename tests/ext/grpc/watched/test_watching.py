"""Who is told what becomes of a request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from modelserver.errors import ServiceUnavailable
from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.statuses import FAILED, tell_prediction
from modelserver.ext.grpc.watched.watching import Watcher, Watches

ANY: Any = object()


class Notes(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def queued(self, request: Any) -> None:
        self.told.append("queued")

    def sent(self, part: Any) -> None:
        self.told.append(part)

    def answered(self, answer: Any, request: Any, batch_id: str | None) -> None:
        self.told.append((answer, batch_id))

    def failed(self, code: StatusCode, text: str) -> None:
        self.told.append((code, text))

    def left(self) -> None:
        self.told.append("left")


def test_all_watchers_are_told() -> None:
    """Those who watch this request; the others are not asked again."""
    notes = Notes(), Notes()
    asked: list[str] = []
    watches = Watches(
        [lambda path, *_: asked.append(path), *(lambda *_, each=each: each for each in notes)],
        tell_prediction,
    )
    with watches.begin("/s/m", ANY, ANY) as watched:
        watched.queued(ANY)
        watched.sent("part")
        watched.answered("answer", ANY, "b")

    assert asked == ["/s/m"]
    assert [each.told for each in notes] == [["queued", "part", ("answer", "b")]] * 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ServiceUnavailable("later"), tell_prediction(ServiceUnavailable("later"))),
        (ValueError("secret"), (StatusCode.INTERNAL, FAILED)),
        (asyncio.CancelledError(), "left"),
        (GeneratorExit(), "left"),
    ],
)  # fmt: skip
def test_errors_are_of_the_request(error: BaseException, told: Any) -> None:
    """They go on, and watchers get what the client gets."""
    notes = Notes()
    with pytest.raises(type(error)), Watches([lambda *_: notes], tell_prediction).begin("/s/m", ANY, ANY):
        raise error

    assert notes.told == [told]


def test_without_watchers_nothing_is_made() -> None:
    """One object serves all requests."""
    watches = Watches((), tell_prediction)
    watched = watches.begin("/s/m", ANY, ANY)
    watched.sent(ANY)
    with pytest.raises(ServiceUnavailable), watched:
        raise ServiceUnavailable("later")

    assert watches.begin("/s/m", ANY, ANY) is watched
