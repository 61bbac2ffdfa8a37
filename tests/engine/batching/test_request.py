import uuid

import pytest

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.wire.messages import BODY, TENSORS, Answer, Row
from modelserver.errors import DeadlineExceeded, HandlerError, InternalError


def make(count, done=None):
    rows = [Row("r", 2) for _ in range(count)]
    on_done = None if done is None else done.append
    return Request("r", rows, [b"%02d" % i for i in range(count)], 1.0, on_done=on_done)


def answer(text):
    return Answer(len(text)), text


def test_an_ended_request_knows_nobody():
    for end in (lambda r: r.deliver(0, [answer(b"a")]), lambda r: r.fail(RuntimeError("no"))):
        request = make(1, [])
        request.on_part, request.backlog = print, int
        end(request)

        assert (request.on_done, request.on_part, request.backlog) == (None, None, None)


def test_first_end_of_a_request_counts():
    done = []
    failed, answered = make(1, done), make(1, done)
    first = RuntimeError("first")
    answered.deliver(0, [answer(b"a")])

    assert failed.fail(first)
    assert not failed.fail(RuntimeError("second"))
    failed.deliver(0, [answer(b"late")])
    assert (failed.error, failed.answers) == (first, [None])
    assert not answered.fail(RuntimeError("late"))
    assert answered.error is None
    assert done == [answered, failed]


def test_contents_of_a_batch_are_those_of_its_parcels_in_order():
    whole, cut = make(2), make(5)

    rows, bodies = Batch([Parcel(cut, 3, 2), Parcel(whole, 0, 2)], 4, "size").contents()

    assert bodies == [b"03", b"04", b"00", b"01"]
    assert rows == [*cut.rows[3:5], *whole.rows]
    assert len(whole.bodies) == 2


def test_batch_ids_are_distinct_version_4_uuids():
    """Each batch has its own UUID4 in canonical form."""
    ids = [Batch([], 0, "size").id for _ in range(50)]

    assert len(set(ids)) == 50
    assert all(uuid.UUID(i).version == 4 and str(uuid.UUID(i)) == i for i in ids)


def test_batch_knows_whose_its_rows_are():
    first, second = make(2), make(5)
    batch = Batch([Parcel(first, 0, 2), Parcel(second, 1, 3), Parcel(first, 0, 1)], 6, "size")

    assert [batch.request_of(row) for row in range(7)] == [first, first, second, second, second, first, None]
    assert batch.rows_of(first) == [0, 1, 5]
    assert batch.rows_of(second) == [2, 3, 4]
    assert batch.rows_of(make(1)) == []


def test_time_of_a_request_is_that_in_batches_or_waiting():
    """What ran side by side counts once; the rest of the time, whenever it was, it waited. It came at 1.0."""
    lone = make(1)
    lone.handled(3.5, 2.0)

    assert (lone.began, lone.queued, lone.handler_time) == (3.5, 2.5, 2.0)

    request = make(4)
    for began, seconds in ((2.0, 1.0), (2.5, 1.0), (5.0, 1.0), (1.5, 6.0)):
        request.handled(began, seconds)
        if seconds == 1.0 and began == 5.0:
            assert (request.handler_time, request.queued) == (2.5, 2.5)

    assert (request.began, request.handler_time, request.queued) == (1.5, 6.0, 0.5)


def ended(*answers, kind=BODY):
    """A request whose rows have these answers."""
    request = Request("id", [Row("id", 0, kind)] * len(answers), [b""] * len(answers), 0.0)
    request.deliver(0, list(answers))
    return request


def test_the_first_row_that_failed_is_named():
    failed = Answer(3, 400, failed=True, error_type="Own"), b"bad"
    failure = ended((Answer(1), b"a"), failed, failed, kind=TENSORS).failure("row %d: ")
    alone = ended(failed).failure("row %d: ")

    assert isinstance(failure, HandlerError)
    assert (str(failure), str(alone)) == ("row 1: bad", "bad")
    assert (failure.status, failure.kserve_status, failure.type) == (400, None, "Own")
    assert HandlerError.type == "InternalServerException"


def test_a_whole_body_that_failed_is_500_for_kserve():
    """What is 503 in TorchServe's protocol (design 9, "Statuses")."""
    failure = ended((Answer(3, 503, failed=True), b"bad")).failure()
    assert (failure.status, failure.kserve_status) == (503, 500)


@pytest.mark.parametrize(
    ("error", "kind"), [(DeadlineExceeded("d"), DeadlineExceeded), (OSError("o"), InternalError)]
)
def test_errors_of_a_request_are_reported(error, kind):
    """Strange ones are the server's fault. None holds what it was raised in."""
    request = Request("id", [Row("id", 0)], [b""], 0.0)
    request.fail(error)
    failure = request.failure()

    assert type(failure) is kind
    assert failure.__traceback__ is None


def test_answers_come_in_order():
    request = ended((Answer(1), b"a"), (Answer(1), b"b"))
    assert (request.failure(), request.contents()) == (None, [b"a", b"b"])
