import math
from pathlib import Path

import pytest
from tests.tools.doctor.conftest import Model

from modelserver.tools.doctor.endurance import check_calls, check_endurance
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.patient import Readings
from modelserver.tools.doctor.probing import Called, Opened, SourceLine, Training

_MB = 1 << 20


def endured(rows, calls=200, **changed):
    report, model = CheckReport(), Model(lambda bodies: [1 for _ in bodies])
    for name, value in changed.items():
        setattr(model, name, value)
    check_endurance(report, model, rows, calls)
    return report


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({}, None),
        (
            {"blocks": lambda calls: 1000 + calls},
            "Each call leaves 1.0 objects behind, without end in 800 calls.",
        ),
        ({"blocks": lambda calls: 1000 + min(calls, 300)}, None),
        ({"blocks": lambda calls: int(1000 + 3000 * math.log(calls))}, None),
        (
            {"looks": lambda calls: Readings(_MB * 20 + calls * 16384, 2, 0)},
            "Memory grew from 20 to 32 MiB in 800 calls, 16 KiB with each.",
        ),
        ({"looks": lambda calls: Readings(_MB * 20 + min(calls, 100) * 16384, 2, 0)}, None),
        (
            {"looks": lambda calls: Readings(_MB, 2 + calls, 0)},
            "The worker had 2 threads before 200 calls, and 202 after.",
        ),
        ({"looks": lambda calls: Readings(_MB, 2 + min(calls, 32), 0)}, None),
        (
            {"looks": lambda calls: Readings(_MB, 2, calls // 2)},
            "The worker had 0 processes before 200 calls, and 100 after.",
        ),
    ],
)
def test_steady_growth_is_a_finding(rows, changed, seen):
    assert [each.seen for each in endured(rows, **changed).findings] == ([seen] if seen else [])


def test_costs_of_single_calls_are_reported():
    here = SourceLine("h.py", 5, "handle")
    call = Called(
        1,
        1,
        opened=[Opened("/models/m/names.json", here), Opened("/etc/hosts")],
        gradients=here,
        has_gradients=True,
        training=[Training("self.net", "Net", ["Dropout"]), Training("other", "Linear", [])],
        built=here,
    )
    report = CheckReport()
    check_calls(report, [call] * 5 + [Called(1, -1, "ValueError: no")], Path("/models/m"))

    assert [(each.id, each.seen.partition(" ")[0], each.place) for each in report.findings] == [
        ("read-per-call", "names.json", here),
        ("read-per-call", "/etc/hosts", None),
        ("built-per-call", "A", here),
        ("gradients-on", "The", here),
        ("training-mode", "self.net", None),
        ("training-mode-unused", "other", None),
    ]


def test_work_of_some_calls_is_not_reported():
    """A file that only some calls read may belong to their input, and the first may load what others use."""
    calls = [Called(1, 1, opened=[Opened(f"/tmp/{number % 2}")]) for number in range(10)]
    calls[0] = Called(1, 1, built=SourceLine("h.py", 5, "handle"))
    report = CheckReport()
    check_calls(report, calls, Path("/models/m"))
    check_calls(report, calls[:2], Path("/models/m"))

    assert report.findings == []
    assert report.left_out == {"work of each call": "2 calls were made, 4 are needed"}
    unseen = CheckReport()
    check_calls(unseen, [], Path("/models/m"))
    assert unseen.checked == []
    assert unseen.left_out == {"gradients, work of each call": "calls of an asynchronous handler overlap"}
