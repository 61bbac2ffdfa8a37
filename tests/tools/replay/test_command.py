"""The command line of ``modelserver replay``; tests/e2e has whole replays."""

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.recording.entries import Ended, Lost, pack
from modelserver.ext.recording.file import Recording, Writer
from modelserver.ext.rollout.agreement import Tolerance
from modelserver.tools.replay import command
from modelserver.tools.replay.command import differences_of, main, notices, read_speed
from modelserver.tools.replay.sender import TimedResponse

URL = "http://127.0.0.1:9"


@pytest.fixture
def traffic(tmp_path, make_call):
    path = tmp_path / "traffic.msr"
    with path.open("wb", buffering=0) as output:
        Writer(output).write(pack([make_call(), Ended("interrupted")]))
    return str(path)


def test_speed_is_positive_number_or_max():
    assert (read_speed("1"), read_speed("0.5"), read_speed("max")) == (1.0, 0.5, None)
    for wrong in ("0", "-1", "fast", "nan", "inf"):
        with pytest.raises(ConfigError, match="--speed"):
            read_speed(wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "nowhere"], "--to=nowhere"),
        (["--to", URL, "--timeout", "0"], "--timeout=0"),
        (["--to", URL, "--connections", "0"], "--connections=0"),
        (["--to", URL, "--header", "x"], "NAME:VALUE"),
        (["--to", URL, "--header", ": x"], "NAME:VALUE"),
        (["--to", URL, "--header", "x y: z"], "NAME:VALUE"),
        (["--to", URL, "--header", "x: \u0141"], "NAME:VALUE in ASCII"),
        (["--to", URL + "/a b"], "must be written as %20"),
        (["--to", URL, "--tolerance", "nan"], "--tolerance=nan"),
        (["--exact", "--tolerance", "-1"], "--tolerance=-1"),
        (["--to", URL, "--plot", "/nowhere/plot.html"], "--plot=/nowhere/plot.html"),
        (["--exact", "--speed", "2"], "--speed has no effect with --exact"),
        (["--to", URL, "--models", "a.mar"], "--models has no effect with --to"),
    ],
)
def test_bad_command_line_exits_with_2(traffic, flags, message, capsys):
    assert main([traffic, *flags]) == 2
    assert message in capsys.readouterr().err


def test_missing_recording_and_server_have_their_status(traffic, tmp_path, capsys):
    (tmp_path / "a").write_text("text")

    assert main([str(tmp_path / "a"), "--to", URL]) == 2
    assert "not a recording" in capsys.readouterr().err
    assert main([traffic, "--to", URL]) == 1
    assert "errors now: 1 x cannot connect" in capsys.readouterr().out


@pytest.mark.parametrize(("speed", "times"), [("1", [0.0, 0.4]), ("2", [0.0, 0.2]), ("max", None)])
def test_gaps_are_scaled_by_speed(tmp_path, make_call, monkeypatch, speed, times):
    path = tmp_path / "traffic.msr"
    with path.open("wb", buffering=0) as output:
        calls = make_call(at=7), make_call(at=400_000_007)
        Writer(output).write(pack([*calls, Ended("interrupted")]))
    values = []

    async def send(_, requests, times, **__):
        values.append(times)
        return [TimedResponse(0.0, 0.0, 200)] * len(requests)

    monkeypatch.setattr(command.sender, "send", send)

    assert main([str(path), "--to", URL, "--speed", speed]) == 0
    assert values == [times]


def test_incomplete_recordings_and_answers_are_left_out(make_call):
    """Answers that were cut off, or that nobody waited for, are not compared."""
    calls = [make_call(), make_call(status=0), make_call(complete=False)]
    result = differences_of(calls, [TimedResponse(0, 0, 200, b"", b"other")] * 3, Tolerance())
    assert (result.compared, [how for _, how in result.differing]) == (1, ["'answer' became 'other'"])
    cut = notices(Recording(None, [], Lost(3), "", "it was cut off in the middle"))
    killed = notices(Recording(None, [], Lost(), "", ""))

    assert "cut off in the middle" in cut[0]
    assert "3 found the buffer full" in cut[1]
    assert "was not ended" in killed[0]
    assert notices(Recording(None, [], Lost(), "interrupted", "")) == []
