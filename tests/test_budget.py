from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.budget import LONGEST, REFERENCE, SECONDS, WHOLE, Budget, used, work


def after(seconds, tests, *, is_fast_lane=True, slower=1.0):
    """The budget at the end of such a run, in two processes, on a machine that is so much slower."""
    budget = Budget(is_fast_lane=is_fast_lane)
    report = SimpleNamespace(when="call")
    for _ in range(tests):
        budget.pytest_runtest_logreport(report)
    for _ in range(2):
        output = {"processor_seconds": seconds / 2, "reference_seconds": [slower * REFERENCE]}
        budget.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    return budget


@pytest.mark.parametrize(
    ("budget", "fails"),
    [
        pytest.param(after(SECONDS + 1, WHOLE), True, id="above"),
        pytest.param(after(SECONDS - 1, WHOLE), False, id="below"),
        pytest.param(after(2 * SECONDS - 1, WHOLE, slower=2.0), False, id="below, slow"),
        pytest.param(after(2 * SECONDS + 1, WHOLE, slower=2.0), True, id="above, slow"),
        pytest.param(after(SECONDS + 1, WHOLE, slower=0.5), True, id="above, quick"),
        pytest.param(after(SECONDS + 1, WHOLE - 1), False, id="a part of the lane"),
        pytest.param(after(SECONDS + 1, WHOLE, is_fast_lane=False), False, id="another lane"),
    ],
)
def test_only_a_whole_fast_lane_above_the_budget_fails(budget, fails):
    """Then the run has failed, though each test has passed."""
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    budget.pytest_sessionfinish(session)

    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)
    assert bool(budget.fault) is fails


def test_processor_time_of_children_counts():
    """Servers use most of the time of end-to-end tests."""
    import subprocess
    import sys

    before = used()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)

    assert used() > before


def test_work_takes_processor_time():
    assert work() > 0.001


def test_the_longest_files_are_of_slow_tests():
    """Each is a file of this folder that has some."""
    files = Path(__file__).parent.rglob("test_*.py")
    assert set(LONGEST) <= {path.stem for path in files if "mark.slow" in path.read_text("utf-8")}
