"""The bodies of requests for chats and completions."""

import json

import pytest

from modelserver_handlers.errors import BadInput
from modelserver_handlers.language.requests import ChatMessage, ChatRequest, CompletionRequest, read_request

HELLO = [{"role": "user", "content": "hello"}]


def test_body_is_read_from_bytes_or_json():
    fields = {"model": "m", "messages": HELLO, "stop": "a", "min_p": 0.1}
    body = json.dumps(fields).encode()
    request = read_request(ChatRequest, body)

    assert (request.messages[0].text, request.stops, request.body) == ("hello", ["a"], body)
    assert json.loads(read_request(ChatRequest, fields).body) == fields


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}], "ab"),
    ],
)
def test_text_of_a_message_leaves_out_other_parts(content, text):
    assert ChatMessage(role="user", content=content).text == text


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_prompts_are_texts_or_token_ids(prompt, prompts):
    assert read_request(CompletionRequest, {"prompt": prompt}).prompts == prompts


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (ChatRequest, {"messages": []}, "messages"),
        (ChatRequest, {"messages": "hello"}, "messages"),
        (ChatRequest, {}, "messages"),
        (ChatRequest, {"messages": HELLO, "temperature": -1}, "temperature"),
        (ChatRequest, {"messages": HELLO, "top_p": 0}, "top_p"),
        (ChatRequest, {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        (ChatRequest, {"messages": HELLO, "seed": 1 << 70}, "seed"),
        (ChatRequest, {"messages": HELLO, "n": 1000}, "n must be at most 128, and is 1000"),
        (ChatRequest, {"messages": HELLO, "stop": ["x"] * 100_000}, "stop has 100000 texts, 64 are allowed"),
        (ChatRequest, {"messages": HELLO, "stop": ["a", ""]}, "stop has an empty text"),
        (CompletionRequest, {"prompt": {}}, "prompt"),
        (CompletionRequest, {"prompt": []}, "prompt is empty"),
        (CompletionRequest, {"prompt": [{"a": 1}]}, "prompt: a text or token ids are needed"),
        (CompletionRequest, {"prompt": [1, "a"]}, "prompt: a text or token ids are needed"),
        (CompletionRequest, {"prompt": ["a", 1]}, "prompt: a text or token ids are needed"),
        (CompletionRequest, {"prompt": [[1], [True]]}, "prompt: a text or token ids are needed"),
        (CompletionRequest, {"prompt": ["a"] * 2049}, "2049 answers are requested by prompt and n, 2048 are"),
        (CompletionRequest, {"prompt": ["a"] * 1025, "n": 2}, "2050 answers are requested"),
    ],
)
def test_bad_field_is_named(kind, fields, message):
    with pytest.raises(BadInput, match=message):
        read_request(kind, json.dumps(fields).encode())


def test_fields_may_be_null():
    """As a client sends those that its caller leaves out."""
    names = set(CompletionRequest.__struct_fields__) - {"model", "prompt", "body"}
    request = read_request(CompletionRequest, {"prompt": "a", **dict.fromkeys(names)})
    options = {"stream_options": {"include_usage": None}}

    assert not request.echo
    assert not read_request(ChatRequest, {"messages": HELLO, **options}).reports_usage


@pytest.mark.parametrize("body", [b"", b"{", b'{"messages": "\xff"}', b"[" * 100_000])
def test_body_that_is_no_json_is_refused(body):
    with pytest.raises(BadInput):
        read_request(ChatRequest, body)
