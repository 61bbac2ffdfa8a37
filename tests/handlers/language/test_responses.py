"""Documents and events of OpenAI's API."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers.language.responses import ReplyWriter, StopFilter, TokenUsage


def content(event):
    """The document of one event."""
    assert (event[:6], event[-2:]) == (b"data: ", b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


@pytest.mark.parametrize("chat", [True, False])
@given(text=st.text())
def test_event_of_a_text_is_that_of_any_event(chat, text):
    writer = ReplyWriter("r", 'a "model"', chat=chat)
    delta = {"content": text} if chat else text

    assert content(writer.text(text, 2)) == content(writer.event(2, delta))


def test_stream_has_one_id():
    writer = ReplyWriter("r", "m", chat=True)
    usage = TokenUsage(2, 3, 5)
    events = [writer.role(), writer.text("a"), writer.event(0, {}, "stop"), writer.usage(usage)]
    documents = [content(event) for event in events]

    assert {(each["id"], each["object"], each["model"]) for each in documents} == {
        ("chatcmpl-r", "chat.completion.chunk", "m")
    }
    assert [each["choices"][0]["delta"] for each in documents[:3]] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {},
    ]
    assert documents[2]["choices"][0]["finish_reason"] == "stop"
    assert (documents[3]["choices"], documents[3]["usage"]["total_tokens"]) == ([], 5)


@pytest.mark.parametrize(
    ("chat", "field"), [(True, {"message": {"role": "assistant", "content": "a"}}), (False, {"text": "a"})]
)
def test_whole_answer_has_its_choices(chat, field):
    writer = ReplyWriter("r", "m", chat=chat)
    whole = json.loads(writer.whole([writer.choice(0, "a", "length")], TokenUsage(1, 1, 2)))

    assert whole["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "length", **field}]
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@given(pieces=st.lists(st.text("abc", max_size=4)), stops=st.lists(st.text("abc", min_size=1, max_size=3)))
def test_text_is_cut_before_the_first_stop(pieces, stops):
    whole = "".join(pieces)
    ends = [at for stop in stops if (at := whole.find(stop)) >= 0]
    filter_ = StopFilter(stops)
    sent = ""
    for piece in pieces:
        sent += filter_.add(piece)
        if filter_.is_cut:
            break
    sent += filter_.rest()

    if not ends:
        assert (sent, filter_.is_cut) == (whole, False)
    else:
        # A stop that is complete first ends the text, though another may begin before it.
        assert filter_.is_cut
        assert whole.startswith(sent)
        assert not any(stop in sent for stop in stops)


def test_text_that_may_begin_a_stop_is_held_back():
    filter_ = StopFilter(["END"])

    assert [filter_.add(piece) for piece in ("a E", "N", "X", "E")] == ["a ", "", "ENX", ""]
    assert filter_.rest() == "E"
