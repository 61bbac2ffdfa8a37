from modelserver.engine.wire.messages import BODY, Answer, Row
from modelserver.engine.worker.work import Work, failure


def row(kind=BODY):
    return Row("id", 0, kind)


def test_rows_without_an_answer_are_open():
    done = failure("no", 400)
    work = Work(7, [row(), row()], [None, None], [done, None])
    assert work.open == [1]
    work.answers[1] = (Answer(2), b"ok")

    result, contents = work.result(0.5)
    assert (result.sequence, result.handler_time, contents) == (7, 0.5, [b"no", b"ok"])
    assert [answer.failed for answer in result.answers] == [True, False]
