"""The documents and events that answer requests of OpenAI's API.

An event is made of bytes that are the same for the whole stream and the text in between: encoding all of it
for each token would be most of a token's cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from modelserver_handlers.context import Context

EVENTS: Final = "text/event-stream; charset=utf-8"
DONE: Final = b"data: [DONE]\n\n"

MODELS: Final = "v1/models"

_encode = msgspec.json.encode


def listed_models(names: Iterable[str]) -> dict[str, Any]:
    """The list of models that a handler answers at ``/predictions/NAME/v1/models``."""
    owner = {"object": "model", "created": 0, "owned_by": "modelserver"}
    return {"object": "list", "data": [{"id": name, **owner} for name in names]}


class TokenUsage(msgspec.Struct, omit_defaults=False):
    """How many tokens a request and its answers have."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


def report_usage(context: Context, prompt: int, completion: int) -> TokenUsage:
    """Tells the server how many tokens a request and its answers have, and returns them."""
    context.set_response_parameter(0, "prompt_tokens", prompt)
    context.set_response_parameter(0, "completion_tokens", completion)
    return TokenUsage(prompt, completion, prompt + completion)


class ReplyWriter:
    """The whole answer of one request, or its events.

    Args:
        request_id: becomes part of the answer's id.
        model: the name that the client used.
        chat: whether it is of a chat, otherwise of a completion.
    """

    def __init__(self, request_id: str, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        self._model = model
        self._created = int(time.time())
        head = self._head("chat.completion.chunk" if chat else "text_completion")
        self._start = b"data: " + _encode(head)[:-1]
        self._before: dict[int, bytes] = {}
        self._after = (b"}" if chat else b"") + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def role(self, index: int = 0) -> bytes:
        """The first event of a choice of a chat."""
        return self.event(index, {"role": "assistant", "content": ""})

    def text(self, text: str, index: int = 0) -> bytes:
        """The event of a piece of text."""
        before = self._before.get(index)
        if before is None:
            name = b'"delta":{"content":' if self._chat else b'"text":'
            before = self._before[index] = self._start + b',"choices":[{"index":%d,%b' % (index, name)
        return before + _encode(text) + self._after

    def event(
        self, index: int, delta: Any, finish: str | None = None, *, logprobs: Any = None, **more: Any
    ) -> bytes:
        """Any other event of a choice; ``delta`` is that of a chat, or the text of a completion."""
        content = {"delta": delta} if self._chat else {"text": delta}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish, **more}
        return self._start + b',"choices":' + _encode([choice]) + b"}\n\n"

    def usage(self, usage: TokenUsage) -> bytes:
        """The event before the last one of a client that asks for the usage."""
        return self._start + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n"

    def choice(self, index: int, text: str, finish: str, **more: Any) -> dict[str, Any]:
        """A choice of the whole answer; ``more`` are fields of a chat's message."""
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": more.pop("logprobs", None),
            "finish_reason": finish,
        }
        if self._chat:
            fields["message"] = {"role": "assistant", "content": text, **more}
        else:
            fields["text"] = text
        return fields

    def whole(self, choices: list[dict[str, Any]], usage: TokenUsage) -> bytes:
        """The whole answer."""
        head = self._head("chat.completion" if self._chat else "text_completion")
        return _encode({**head, "choices": choices, "usage": usage})


class StopFilter:
    """Cuts a text that comes in pieces before the first of some texts; these may begin in any piece."""

    def __init__(self, stops: list[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.is_cut = False

    def add(self, piece: str) -> str:
        """What of the text so far can be sent now."""
        if not self._stops:
            return piece
        text = self._held + piece
        first = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)
        if first >= 0:
            self._held, self.is_cut = "", True
            return text[:first]
        held = next(
            (size for size in range(min(self._longest - 1, len(text)), 0, -1) if self._begins(text[-size:])),
            0,
        )
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _begins(self, end: str) -> bool:
        """Whether one of the texts may begin with this."""
        return any(stop.startswith(end) for stop in self._stops)

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held
