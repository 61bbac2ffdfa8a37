import asyncio

import pytest
from tests.ext.rollout.doubles import Pool, Version, answered, request

from modelserver.engine.wire.messages import Answer
from modelserver.errors import WorkerDied
from modelserver.ext.rollout import shadow as shadows
from modelserver.ext.rollout.judging import Judge
from modelserver.ext.rollout.plan import Shadowing
from modelserver.ext.rollout.shadow import Shadow


class Spare:
    """A model that has time unless the test changes this."""

    def __init__(self):
        self.has = True
        self.busy = False

    def left(self):
        return self.has


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Copies are sent in the next turn of the loop."""
    monkeypatch.setattr(shadows, "SOON", 0)
    monkeypatch.setattr(shadows, "LATER", 0)


@pytest.fixture
async def primary():
    return Version("1.0")


@pytest.fixture
async def pool():
    return Pool()


def shadow_of(pool, **more):
    spare = more.pop("spare", Spare())
    return Shadow(Version("2.0", pool), more.pop("how", Shadowing(100)), Judge(), spare=spare, **more)


async def turn():
    for _ in range(3):
        await asyncio.sleep(0.0005)


async def copy(shadow, request):
    """Another version has answered the request; its copy is sent if it may be."""
    shadow.take(request, Version("1.0"), streamed=False)
    await turn()


async def respond(pool, *contents, **more):
    pool.answer(*contents, **more)
    await turn()


def outcomes(shadow):
    return {name: count for name, count in shadow.counts.outcomes.items() if count}


async def test_copies_are_sent_together(primary, pool):
    reports = []
    shadow = shadow_of(pool, on_result=lambda *data: reports.append((*data[1:2], data[3])))
    for content in b"abcdefghij":
        shadow.take(answered(bytes([content])), primary, streamed=False)
    await turn()

    (together,) = pool.submitted
    assert len(together.rows) == 8
    await respond(pool, *(bytes([content]) for content in b"abXdefgh"))
    assert outcomes(shadow) == {"agreed": 7, "differed": 1}
    (difference,) = shadow.differences
    assert difference.reason == "bodies of 1 and 1 bytes differ"
    assert difference.batches == (("", 0), ("b", 8))
    assert reports.count((False, True)) == 7

    await respond(pool, b"i", b"j")
    assert outcomes(shadow) == {"agreed": 9, "differed": 1}
    assert (shadow.counts.latencies.total, shadow.counts.batch_sizes) == (10, 8 * 8 + 2 * 2)


async def test_rows_of_one_request_stay_together(primary, pool):
    shadow = shadow_of(pool)
    for rows, key in ((6, "a"), (3, "a"), (1, "b"), (20, "b")):
        shadow.take(answered(rows=rows, key=key), primary, streamed=False)
    sizes = []
    for _ in range(4):
        await turn()
        sizes.append(len(pool.submitted[0].rows))
        pool.answer(b"1")

    assert sizes == [6, 3, 1, 20]
    assert outcomes(shadow) == {"agreed": 4}


@pytest.mark.parametrize("why", ["clients", "loop", "workers"])
async def test_copies_wait_for_what_matters_more(pool, why):
    spare = Spare()
    shadow = shadow_of(pool, spare=spare)
    spare.has = why != "loop"
    pool.queue.requests = int(why == "clients")
    if why == "workers":
        await copy(shadow, answered())
    before = len(pool.submitted)
    await copy(shadow, answered())
    assert (len(pool.submitted), shadow.waiting) == (before, 1)

    spare.has, pool.queue.requests = True, 0
    if why == "workers":
        pool.answer(b"1")
    await turn()
    assert (len(pool.submitted), shadow.waiting) == (1, 0)


async def test_only_so_many_copies_wait(primary, pool, monkeypatch):
    monkeypatch.setattr(shadows, "MOST_WAITING", 3)
    shadow = shadow_of(pool)
    for _ in range(5):
        shadow.take(answered(), primary, streamed=False)
    assert (shadow.waiting, outcomes(shadow)) == (3, {"queue_full": 2})

    monkeypatch.setattr(shadows, "MOST_WAITING", 30)
    monkeypatch.setattr(shadows, "MOST_BYTES", 10)
    shadow.take(answered(body=b"12345678"), primary, streamed=False)
    assert outcomes(shadow) == {"queue_full": 3}


async def test_a_busy_loop_keeps_only_what_it_can_send_next(primary, pool):
    spare = Spare()
    spare.has, spare.busy = False, True
    shadow = shadow_of(pool, spare=spare)
    for _ in range(20):
        if not shadow.passes_over():
            shadow.take(answered(), primary, streamed=False)
    assert (shadow.waiting, outcomes(shadow)) == (pool.queue.batch_size, {"no_time": 12})

    spare.busy = False
    assert not shadow.passes_over()


async def test_a_dead_shadow_gets_nothing(pool):
    shadow = shadow_of(pool)
    pool.fail_workers()
    await copy(shadow, answered())
    assert (len(pool.submitted), outcomes(shadow)) == (0, {"not_ready": 1})

    pool.workers[0].is_ready = True
    pool.refuses = True
    await copy(shadow, answered())
    assert outcomes(shadow) == {"not_ready": 1, "refused": 1}

    pool.refuses = False
    await copy(shadow, answered())
    assert len(pool.submitted) == 1


async def test_failed_copy_differs(primary, pool):
    """A copy that fails differs, and counts as failed where the primary did not fail."""
    reports = []
    shadow = shadow_of(pool, on_result=lambda *data: reports.append((data[1], data[3])))
    cases = ((200, None), (503, None), (200, 503), (503, 503))
    for mine, other in cases:
        await copy(shadow, answered(b"1", mine))
        if other is None:
            pool.submitted.popleft().fail(WorkerDied())
        else:
            pool.answer(b"1", status=other)
        await turn()

    assert outcomes(shadow) == {"agreed": 1, "differed": 3}
    assert reports == [(True, False), (True, False), (True, False), (False, True)]
    assert [each.statuses for each in shadow.differences] == [(200, 500), (503, 500), (200, 503)]
    assert shadow.differences[0].reason == "Worker died."


async def test_what_cannot_be_compared_is_not_copied(primary, pool):
    shadow = shadow_of(pool)
    failed = request()
    failed.fail(WorkerDied())
    shadow.take(failed, primary, streamed=False)
    shadow.take(answered(), primary, streamed=True)
    primary.splits = False
    shadow.take(answered(), primary, streamed=False)

    assert outcomes(shadow) == {"unanswered": 1, "streamed": 1, "refused": 1}


async def test_streamed_copy_is_not_compared(primary, pool):
    shadow = shadow_of(pool)
    for _ in range(2):
        shadow.take(answered(), primary, streamed=False)
    await turn()
    together = pool.submitted[0]
    together.on_part(together, Answer(1), b"1")
    await respond(pool, b"")

    assert outcomes(shadow) == {"streamed": 2}


@pytest.mark.parametrize(("keep", "bodies"), [(0, None), (3, (b"que", b"fir", b"sec"))])
async def test_bodies_are_stored_only_on_request(pool, keep, bodies):
    shadow = shadow_of(pool, keep=keep)
    await copy(shadow, answered(b"first", body=b"question"))
    await respond(pool, b"second")

    assert shadow.differences[0].bodies == bodies


async def test_the_judge_compares_what_takes_long(primary, pool):
    reports = []
    shadow = shadow_of(pool, how=Shadowing(100, "numeric"), on_result=lambda *data: reports.append(data[3]))
    requests = []
    shadow._judge = type("J", (), {"compare": lambda _, *case: requests.append(case)})()
    for _ in range(4):
        shadow.take(answered(b"1"), primary, streamed=False)
    await turn()
    await respond(pool, b"1", b"1.0", b"2", b"3")
    assert outcomes(shadow) == {"agreed": 1}

    for (*_, judged), reason in zip(requests, ("", "1 and 2", None), strict=True):
        judged(reason)
    assert outcomes(shadow) == {"agreed": 2, "differed": 1, "not_compared": 1}
    assert reports == [True, True, False, None]


async def test_closed_shadow_takes_nothing(primary, pool):
    shadow = shadow_of(pool)
    await copy(shadow, answered())
    shadow.take(answered(), primary, streamed=False)
    shadow.close()
    await respond(pool, b"1")

    shadow.take(answered(), primary, streamed=False)

    assert (len(pool.submitted), shadow.waiting, outcomes(shadow)) == (0, 0, {"agreed": 1, "ended": 2})
