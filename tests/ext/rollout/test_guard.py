import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.rollout.guard import Evidence, judge, next_step
from modelserver.ext.rollout.plan import Promotion

ALL = Promotion(after=1000, agreement=0.99, p99_ratio=1.2, errors=0.01)

COUNTS = st.integers(0, 3000)
GOALS = st.builds(
    Promotion,
    after=st.integers(1, 2000),
    agreement=st.none() | st.floats(0, 1),
    p99_ratio=st.none() | st.just(1.2),
    errors=st.floats(0, 1),
)


@pytest.mark.parametrize(
    ("seen", "action", "cause", "reason"),
    [
        (Evidence(), "stay", "kept", "0 of 1000 answers"),
        (Evidence(999, 10, 10, 999, 9), "stay", "kept", "999 of 1000 answers"),
        (Evidence(1000, 10, 10, 1000, 10), "on", "kept", "1000 answers within the bounds (failed 10 of 1000"),
        (Evidence(50, 11, 0, 50, 0), "back", "errors", "failed: 11 of 50, 1 % are allowed"),
        (Evidence(50, 0, 11, 50, 0), "back", "p99_ratio", "slower than 1.2 times the 99th percentile"),
        (Evidence(50, 0, 0, 50, 11), "back", "agreement", "differed: 11 of 50, 1 % are allowed"),
        (Evidence(1000, 0, 0, 200, 3), "back", "agreement", "differed: 3 of 200, 1 % are allowed"),
        (Evidence(5000, 0, None, 99, 0), "stay", "kept", "99 of 100 comparisons"),
        (Evidence(1000, 0, None, None, 0), "on", "kept", "1000 answers within the bounds (failed 0 of 1000)"),
    ],
)
def test_verdict_follows_the_evidence(seen, action, cause, reason):
    verdict = judge(ALL, seen)
    assert (verdict.action, verdict.cause) == (action, cause)
    assert verdict.reason.startswith(reason)


@st.composite
def evidence(draw):
    answers = draw(COUNTS)
    compared = draw(st.integers(0, answers))
    return Evidence(
        answers,
        draw(st.integers(0, answers)),
        draw(st.none() | st.integers(0, answers)),
        draw(st.none() | st.just(compared)),
        draw(st.integers(0, compared)),
    )


@given(GOALS, evidence())
def test_nothing_goes_up_that_breaks_a_bound(goal, seen):
    if judge(goal, seen).action == "on":
        assert seen.answers >= goal.after
        assert goal.errors is None or seen.failed <= goal.errors * seen.answers
        assert (
            goal.agreement is None
            or not seen.compared
            or seen.differed <= (1 - goal.agreement) * seen.compared
        )
        assert goal.p99_ratio is None or not seen.slow or seen.slow <= 0.01 * seen.answers


@given(GOALS, st.lists(st.booleans(), max_size=300))
def test_it_goes_back_early_only_if_the_bound_cannot_hold(goal, failures):
    """It does so whatever the next answers are: good ones alone would not have been enough."""
    failed = 0
    for number, failure in enumerate(failures, 1):
        failed += failure
        verdict = judge(goal, Evidence(number, failed, None, None, 0))
        if verdict.action == "back" and number < goal.after:
            best = Evidence(goal.after, failed, None, None, 0)
            assert judge(goal, best).action == "back"


@given(st.floats(0, 100))
def test_steps_go_up_to_the_last(weight):
    step = next_step(ALL, weight)
    assert step is None if weight == 100 else step is not None and step > weight
