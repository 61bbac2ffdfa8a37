from modelserver.tools.replay.command import Differences, ReplaySide, page, text_report
from modelserver.tools.replay.sender import TimedResponse


def sides(make_call):
    calls = [make_call(at=0, took=2_000_000), make_call(at=98_000_000, took=2_000_000)]
    lines = b"server-timing: queue;dur=3.0, inference;dur=4.0\r\n"
    answers = [TimedResponse(0.0, 0.008, 200, lines), TimedResponse(0.1, 0.1, 503)]
    return ReplaySide.recorded(calls), ReplaySide.replayed(answers)


def test_table_compares_latencies_and_errors(make_call):
    lines = text_report(*sides(make_call), None).splitlines()
    rows = {line[:16].strip(): line[16:].split() for line in lines}

    assert rows["requests"] == ["2", "2"]
    assert rows["errors"] == ["0", "1"]
    assert rows["seconds"] == ["0.10", "0.20"]
    assert rows["latency p99 ms"] == ["2", "8"]
    assert rows["queue p50 ms"] == ["1.5", "3"]
    assert rows["handler p50 ms"] == ["2.5", "4"]
    assert "errors now: 1 x 503" in lines
    assert "p50 ░░░░░░░░░░ " in text_report(*sides(make_call), None)


def test_without_a_good_answer_there_are_no_latencies(make_call):
    bad = ReplaySide.replayed([TimedResponse(0, 0, fault="cannot connect")])
    text = text_report(bad, bad, Differences(1, [(make_call(), "cannot connect")]))

    assert "latency p50 ms             -           -" in text
    assert "1 of 1 answers differ." in text
    assert "█" not in text
    text = text_report(bad, bad, Differences(30, [(make_call(), f"no. {n}") for n in range(25)]))
    assert "0.001 s POST /predictions/m?x=1: no. 19\n  … and 5 more" in text


def test_page_has_curves_and_escapes_text(make_call):
    then, now = sides(make_call)
    text = page("<b>.msr", then, now, Differences(1, [(make_call(), "<script>")]))

    assert text.count("<polyline") == 2
    assert "&lt;b&gt;.msr" in text
    assert "<script>" not in text
