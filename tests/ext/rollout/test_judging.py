import asyncio

import pytest
from tests.waiting import until

from modelserver.errors import InternalError
from modelserver.ext.rollout import judging
from modelserver.ext.rollout.compare import Pair, compare_all
from modelserver.ext.rollout.judging import Judge
from modelserver.ext.rollout.plan import Shadowing

HOW = Shadowing(5, "numeric")


class Helpers:
    """Calls the function here, or fails."""

    def __init__(self, *_):
        self.calls: list[int] = []
        self.failure: Exception | None = None

    async def call(self, _, function, pairs, *more):
        assert function is compare_all
        await asyncio.sleep(0)
        self.calls.append(len(pairs))
        if self.failure is not None:
            raise self.failure
        return function(pairs, *more)

    def close(self):
        pass


@pytest.fixture
async def judge(monkeypatch):
    monkeypatch.setattr(judging, "Helpers", Helpers)
    return Judge()


async def reasons_of(judge, *cases, how=HOW):
    results = []
    for case in cases:
        judge.compare(case, how, results.append)
    await until(lambda: len(results) == len(cases))
    return results


async def test_each_case_gets_its_reason_unless_the_helper_fails(judge):
    same, other = Pair(b"1", b"1.0"), Pair(b"1", b"2")
    assert await reasons_of(judge, [same], [same, other], [same, same]) == ["", "1 and 2 at the top", ""]
    assert judge._helpers.calls == [5]

    await reasons_of(judge, [])
    judge._helpers.failure = InternalError("no memory")
    assert await reasons_of(judge, [Pair(b"1", b"2")], [Pair(b"1", b"1.0")]) == [None, None]

    judge._helpers.failure = None
    assert await reasons_of(judge, [Pair(b"1", b"1.0")]) == [""]


async def test_only_so_much_waits(judge):
    large = Pair(bytes(judging.MOST_BYTES // 2), b"")

    assert await reasons_of(judge, [large], [large], [large]) == [
        None,
        *2 * ["bodies differ, and are no JSON that can be read"],
    ]
    assert await reasons_of(judge, [large]) == ["bodies differ, and are no JSON that can be read"]

    cases = [[Pair(b"1", b"1.0")]] * (judging.MOST_WAITING + 1)
    result = await reasons_of(judge, *cases)

    assert result.count(None) == 1
    assert result.count("") == judging.MOST_WAITING


async def test_each_way_of_comparing_has_calls_of_its_own(judge):
    results = []
    for _ in range(judging.TOGETHER + 1):
        judge.compare([Pair(b"1", b"1.1")], HOW, results.append)
    judge.compare([Pair(b"1", b"1.1")], Shadowing(5, tolerance=0.5), results.append)
    await until(lambda: len(results) == judging.TOGETHER + 2)

    assert judge._helpers.calls == [judging.TOGETHER, 1, 1]
    assert results[-1] == ""
    judge.close()
