"""What a worker has to do at once, and how it failed."""

import pytest

from modelserver.engine.wire.messages import BODY, INSTANCE, Answer, Row
from modelserver.engine.worker.work import (
    ContractBroken,
    Work,
    describe_failure,
    failure,
)


class Unspeakable(Exception):
    """An exception that cannot be turned into text."""

    def __str__(self) -> str:
        raise ValueError


def row(kind: int = BODY) -> Row:
    return Row("id", 0, kind)


def test_rows_without_an_answer_are_open():
    done = failure("no", 400)
    work = Work(7, [row(), row()], [None, None], [done, None])
    assert work.open == [1]
    work.answers[1] = (Answer(2), b"ok")

    result, contents = work.result(0.5)
    assert (result.sequence, result.handler_time, contents) == (7, 0.5, [b"no", b"ok"])
    assert [answer.failed for answer in result.answers] == [True, False]


@pytest.mark.parametrize(
    ("error", "kind", "status", "text"),
    [
        (KeyError("k"), BODY, 503, b"Prediction failed"),
        (KeyError("k"), INSTANCE, 500, b"KeyError : 'k'"),
        (MemoryError(), INSTANCE, 507, b"Out of resources"),
        (ContractBroken("short", "long"), BODY, 503, b"short"),
        (ContractBroken("short", "long"), INSTANCE, 500, b"long"),
        (Unspeakable(), BODY, 503, b"Prediction failed"),
    ],
)
def test_an_exception_has_the_answer_of_its_protocol(error, kind, status, text):
    """TorchServe's words for its own routes, KServe's for V1."""
    answer, content = describe_failure(error, row(kind))

    assert (answer.status, answer.failed, content) == (status, True, text)
