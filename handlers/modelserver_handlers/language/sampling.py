"""From the fields of OpenAI's requests, and those that vLLM adds, to its sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from modelserver_handlers.errors import BadInput
from modelserver_handlers.language.requests import ChatMessage, ChatRequest, CompletionRequest, Generation
from modelserver_handlers.language.vllm_library import Library

# The tokens of a completion that has no limit, as in OpenAI's API.
_COMPLETION_TOKENS: Final = 16
_PENALTIES: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that vLLM has beside OpenAI's, by the names of its sampling parameters."""

    # The engine counts in 64 bits.
    top_k: Annotated[int, msgspec.Meta(le=(1 << 63) - 1)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class VLLMFields(SamplingFields, kw_only=True):
    """All fields beside OpenAI's that need no application."""

    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_OF_SAMPLING: Final = SamplingFields.__struct_fields__
# Fields that change no answer. vLLM's own application ignores them, too, or reads them with tools only.
_HARMLESS: Final = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "tool_choice",
        "user",
    }
)
_KNOWN: Final[dict[type[Generation], frozenset[str]]] = {
    kind: frozenset({*kind.__struct_fields__, *VLLMFields.__struct_fields__, *_HARMLESS} - {"body"})
    for kind in (ChatRequest, CompletionRequest)
}
_NULL: Final = b"null"
_NONE: Final = VLLMFields()
_decode = msgspec.json.Decoder(VLLMFields).decode
_decode_each = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_fields(request: Generation) -> VLLMFields | None:
    """These fields of the request's body, None if only vLLM's own application knows all that the body has.

    Raises BadInput, which names the field.
    """
    try:
        names = {name for name, value in _decode_each(request.body).items() if bytes(value) != _NULL}
        if names - _KNOWN[type(request)] or _needs_application(request):
            return None
        return _NONE if names.isdisjoint(VLLMFields.__struct_fields__) else _decode(request.body)
    except msgspec.DecodeError as error:
        raise BadInput(str(error)) from None


def _needs_application(request: Generation) -> bool:
    """Whether the values of known fields are more than this package serves."""
    if isinstance(request, CompletionRequest):
        return bool(request.echo or request.suffix)
    assert isinstance(request, ChatRequest)  # noqa: S101 - there are two kinds
    form = (request.response_format or {}).get("type", "text")
    is_other = form not in ("text", "json_object", "json_schema")
    return is_other or bool(request.tools) or any(map(_is_special, request.messages))


def _is_special(message: ChatMessage) -> bool:
    """Whether a message has more than text."""
    parts = message.content if isinstance(message.content, list) else ()
    is_text = all(part.get("type") == "text" for part in parts)
    return not is_text or bool(message.tool_calls) or message.role == "tool"


def sampling_parameters(
    library: Library, request: Generation, fields: VLLMFields, defaults: Mapping[str, Any], room: int
) -> Any:
    """The parameters of a request, whose prompt leaves ``room`` for tokens. Raises BadInput.

    ``defaults`` come from the model's generation_config.json.
    """
    values = {name: getattr(request, name) for name in _PENALTIES}
    values |= {name: getattr(fields, name) for name in _OF_SAMPLING}
    values = {**defaults, **{name: value for name, value in values.items() if value is not None}}
    limit = request.limit or defaults.get("max_tokens")
    if limit is None and isinstance(request, CompletionRequest):
        limit = _COMPLETION_TOKENS
    values["max_tokens"] = room if limit is None else min(room, limit)
    kind = library.output_kind.DELTA if request.stream else library.output_kind.FINAL_ONLY
    try:
        return library.sampling.from_optional(
            n=request.choices,
            seed=request.seed,
            stop=request.stops,
            logit_bias=request.logit_bias,
            logprobs=_logprobs(request),
            structured_outputs=_structure(library, request, fields.structured_outputs),
            output_kind=kind,
            **values,
        )
    except (library.refused, ValueError, TypeError) as error:
        raise BadInput(str(error)) from error


def _logprobs(request: Generation) -> int | None:
    """How many alternatives of each token there are to be."""
    if isinstance(request, ChatRequest):
        return (request.top_logprobs or 0) if request.logprobs else None
    count: int | None = request.logprobs  # type: ignore[attr-defined]
    return count


def _structure(library: Library, request: Generation, wishes: dict[str, Any] | None) -> Any:
    """What the answer must look like, None if that is free."""
    fields: dict[str, Any] = dict(wishes or {})
    form = (request.response_format if isinstance(request, ChatRequest) else None) or {}
    if form.get("type") == "json_object":
        fields["json_object"] = True
    elif form.get("type") == "json_schema":
        described = form.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, dict):
            raise BadInput("response_format: json_schema has no schema")
        fields["json"] = schema
    return library.structured(**fields) if fields else None
