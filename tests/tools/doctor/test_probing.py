import msgspec
import pytest

from modelserver.tools.doctor.probing import (
    Called,
    Imported,
    Opened,
    Report,
    Reported,
    SourceLine,
    StartedTask,
    Training,
)

_HERE = SourceLine("h.py", 3, "handle")


@pytest.mark.parametrize(
    "report",
    [
        Reported([Imported("torch", 1.5, 2.0, _HERE)], 2.0, 0.5, "base", {"handle": _HERE}),
        Called(
            *(2, -1, "ValueError: no", _HERE, [Opened("/a")], [StartedTask("thread", _HERE)], None, True),
            [Training("self.net", "Net", ["Dropout"])],
            5,
        ),
    ],
)
def test_reports_arrive_as_they_were_sent(report):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report


def test_calls_are_whole_or_failed():
    assert [Called(2, 2).is_whole, Called(2, 1).is_whole, Called(0, -1).is_whole] == [True, False, False]
    assert (Called(1, 1, "E: no").is_whole, Called(1, -1, "E: no").failed) == (False, True)
