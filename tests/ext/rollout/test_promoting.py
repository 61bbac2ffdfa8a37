import pytest
from tests.ext.rollout.doubles import answered

from modelserver.errors import BadRequest, WorkerDied
from modelserver.ext.rollout.guard import Evidence
from modelserver.ext.rollout.plan import Promotion
from modelserver.ext.rollout.promoting import Promoter, Report, has_failed


def promoter(**goal):
    return Promoter(Promotion(**{"after": 100, "errors": 0.1, **goal}), "2.0", "1.0")


def failed(error):
    made = answered()
    made.error = error
    return made


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (answered(), False),
        (answered(status=400), False),
        (answered(status=503), True),
        (failed(WorkerDied()), True),
        (failed(BadRequest("")), False),
        (failed(ValueError()), True),
    ],
)
def test_only_the_versions_failures_count(request_, expected):
    assert has_failed(request_) is expected


def test_answers_of_the_version_count():
    counts = promoter()
    counts.answered(answered(), "2.0", 0.1)
    counts.answered(answered(status=503), "2.0", 0.1)
    counts.answered(answered(status=503), "1.0", 0.1)
    counts.answered(answered(), "3.0", 0.1)
    counts.refused("2.0")
    counts.refused("1.0")
    counts.copied(True, 0.1, False)
    counts.copied(False, 0.1, True)
    counts.copied(False, 0.1, None)

    assert counts.seen(5) == Evidence(answers=6, failed=3, slow=None, compared=2, differed=1)
    assert counts.seen(100).compared is None
    counts.begin()
    assert counts.seen(5) == Evidence()


def test_slow_answers_are_those_slower_than_the_other_version():
    counts = promoter(p99_ratio=2)
    for _ in range(100):
        counts.answered(answered(), "1.0", 0.1)
    for seconds in (0.1, 0.19, 0.25, 3.0):
        counts.answered(answered(), "2.0", seconds)

    assert counts.seen(50).slow == 2
    assert counts.percentiles() == {"2.0": pytest.approx(3, rel=0.05), "1.0": pytest.approx(0.1, rel=0.05)}
    counts.begin()
    counts.answered(answered(), "2.0", 3.0)
    assert counts.seen(100).slow == 1


def test_a_report_has_the_time_of_its_last_change():
    report = Report("2.0", "1.0", since=0)
    report.note("why", "rolled back")

    assert (report.state, report.reason) == ("rolled back", "why")
    assert report.since > 0
