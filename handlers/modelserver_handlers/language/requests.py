"""The bodies of OpenAI's API that handlers receive."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from modelserver_handlers.errors import BadInput

# Most choices, answers to all prompts, and texts that end an answer: what they cost grows with each.
MAX_CHOICES: Final = 128
MAX_ANSWERS: Final = 2048
MAX_STOPS: Final = 64

Positive = Annotated[int, msgspec.Meta(ge=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message of a chat; ``content`` is a text, or parts such as ``{"type": "text", "text": …}``."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the content, without parts of other kinds."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")
        return self.content or ""


class StreamOptions(msgspec.Struct, kw_only=True):
    """``include_usage``: the stream ends with the usage."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """What requests for a chat and for a completion share; None: the client leaves it to the model.

    ``body`` is the whole request as the client sent it.
    """

    model: str = ""
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    body: bytes = b""

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def choices(self) -> int:
        """How many answers there are to be."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """Texts before which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def reports_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(Generation, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(Generation, kw_only=True):
    """``POST /v1/completions``: ``prompt`` is a text, token ids, or a list of either."""

    prompt: str | list[Any]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of the prompts."""
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
        return [prompt] if is_one else list(prompt)


def _check_prompts(request: CompletionRequest) -> None:
    """Raises BadInput unless there are prompts, each a text or token ids, and not too many answers."""
    prompts = request.prompts
    if not prompts:
        raise BadInput("prompt is empty: there is no token in the input")
    if (count := len(prompts) * request.choices) > MAX_ANSWERS:
        raise BadInput(f"{count} answers are requested by prompt and n, {MAX_ANSWERS} are allowed")
    for each in prompts:
        is_ids = isinstance(each, list) and all(type(one) is int for one in each)
        if not isinstance(each, str) and not is_ids:
            raise BadInput("prompt: a text or token ids are needed")


Request = TypeVar("Request", bound=Generation)
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in (ChatRequest, CompletionRequest)
}


def read_request(kind: type[Request], body: Any) -> Request:
    """The request in a body, in bytes or decoded. Raises BadInput, which names the field."""
    try:
        if isinstance(body, (bytes, bytearray)):
            request: Request = _DECODERS[kind].decode(body)
        else:
            request, body = msgspec.convert(body, kind), msgspec.json.encode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(str(error) or "the JSON is nested too deep") from None
    if request.choices > MAX_CHOICES:
        raise BadInput(f"n must be at most {MAX_CHOICES}, and is {request.n}")
    if len(request.stops) > MAX_STOPS:
        raise BadInput(f"stop has {len(request.stops)} texts, {MAX_STOPS} are allowed")
    if not all(request.stops):
        raise BadInput("stop has an empty text")
    if isinstance(request, CompletionRequest):
        _check_prompts(request)
    request.body = bytes(body)
    return request
