import pytest
from tests.campaign.__main__ import CAMPAIGNS, main
from tests.campaign.callers import Malformed, take_answer
from tests.campaign.report import Report
from tests.campaign.targets import slope
from tests.campaign.wire import cases

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = (
    b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("whole", [PLAIN, CHUNKED])
def test_answers_are_taken_one_by_one(whole):
    """An answer is taken when it is whole and no sooner; what follows stays."""
    for size in range(len(whole)):
        assert take_answer(bytearray(whole[:size])) is None
    received = bytearray(b"HTTP/1.1 100 Continue\r\n\r\n" + whole + PLAIN)
    answer = take_answer(received)

    assert answer.body == b"hi"
    assert (answer.status, answer.closes) == ((200, False) if whole is PLAIN else (400, True))
    assert received == PLAIN


@pytest.mark.parametrize(
    "received",
    [b"hi\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", PLAIN[:-1], CHUNKED.replace(b"2\r\n", b"x\r\n")],
    ids=["no status", "no length", "cut short", "no size"],
)
def test_what_is_no_answer_is_reported(received):
    """Nothing that is not a whole answer passes for one at the end of a connection."""
    with pytest.raises(Malformed):
        take_answer(bytearray(received), ended=True)


def test_the_answer_to_head_has_no_body():
    """Its length is that of the body that another method would get."""
    answer = take_answer(bytearray(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"), head=True)

    assert answer.body == b""


def test_slope_is_that_of_the_best_line():
    """The slope is in bytes per second, by the line that fits best."""
    assert slope([(0.0, 10), (1.0, 30), (2.0, 50)]) == pytest.approx(20)
    assert slope([(0.0, 10)]) == 0


def test_cases_have_names_of_their_own():
    """A failure says which bytes it was about."""
    names = [case.name for case in cases("/x")]

    assert len(names) > 100
    assert len(set(names)) == len(names)


def test_the_report_says_what_did_not_hold():
    """Figures and failures stand in it, and the status of the command follows from the failures."""
    report = Report("name")
    report.figure("requests", 12345)
    assert report.hold(True, "fine")
    assert "all held" in str(report)
    assert not report.hold(False, "this")
    assert "12,345" in str(report)
    assert "DID NOT HOLD: this" in str(report)


def test_campaigns_are_named(capsys):
    """An unknown campaign is refused with those that there are."""
    with pytest.raises(SystemExit) as left:
        main(["nothing"])

    text = capsys.readouterr().err

    assert left.value.code == 2
    assert [name for name in CAMPAIGNS if name not in text] == []
