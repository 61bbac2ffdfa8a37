"""What the spans of requests to OpenAI's API have besides, by OpenTelemetry's names for generative AI."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.surface.watching import Watched

_PROTOCOL: Final = "openai"
# Others are called as the last part of their path.
_OPERATIONS: Final = {"v1/chat/completions": "chat", "v1/completions": "text_completion"}


class _Fields(msgspec.Struct):
    """Fields of a request that its span has as attributes."""

    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class LanguageCall:
    """The attributes of one request."""

    __slots__ = ("_request", "attributes")

    def __init__(self, watched: Watched, request: Request) -> None:
        self._request = request
        route = watched.target.route
        fields: _Fields = _decoded(_decode_fields, watched.body) or _Fields()
        operation = _OPERATIONS.get(route.url_path, route.url_path.rpartition("/")[2])
        self.attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": fields.model or route.model,
        }
        self._add("request.stream", fields.stream)
        self._add("request.max_tokens", fields.max_completion_tokens or fields.max_tokens)
        self._add("request.temperature", fields.temperature)
        self._add("request.top_p", fields.top_p)
        self._add("request.seed", fields.seed)

    def replied(self, body: bytes) -> None:
        """The whole answer, which has the usage."""
        response: _Response | None = _decoded(_decode_response, body)
        self._count(None if response is None else response.usage)

    def ended(self, seconds: float) -> None:
        """The end of a stream, whose first token came after so many seconds."""
        self._add("response.time_to_first_chunk", seconds)
        answer = self._request.answers[0]
        self._count(None if answer is None else _decoded(_decode_usage, answer[0].parameters))

    def _count(self, usage: _Usage | None) -> None:
        if usage is not None:
            self._add("usage.input_tokens", usage.prompt_tokens)
            self._add("usage.output_tokens", usage.completion_tokens)

    def _add(self, name: str, value: float | bool | None) -> None:
        if value is not None:
            self.attributes[f"gen_ai.{name}"] = value


def language_call(watched: Watched, request: Request) -> LanguageCall | None:
    """That of a request to OpenAI's API; None for others."""
    return LanguageCall(watched, request) if watched.target.route.protocol == _PROTOCOL else None


def _decoded(decode: Any, content: bytes) -> Any:
    try:
        return decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The handler, which decides what is valid, says what it lacks.
        return None
