"""From the fields of OpenAI's requests, and those that vLLM adds, to its sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from modelserver_handlers.errors import BadInput
from modelserver_handlers.language.requests import ChatMessage, ChatRequest, CompletionRequest, Generation
from modelserver_handlers.language.vllm_library import Library

# The tokens of a completion that has no limit, as in OpenAI's API.
_COMPLETION_TOKENS: Final = 16
_PENALTIES: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that vLLM has beside OpenAI's, by the names of its sampling parameters."""

    top_k: int | None = None
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


class ApplicationFields(SamplingFields, kw_only=True):
    """And those of what only vLLM's own application does."""

    tools: Any = None
    reasoning_effort: Any = None
    documents: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    echo: Any = None
    suffix: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    prompt_embeds: Any = None
    logprob_token_ids: Any = None
    truncate_prompt_tokens: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    kv_transfer_params: Any = None
    vllm_xargs: Any = None


class VLLMFields(ApplicationFields, kw_only=True):
    """All that vLLM's API has beside OpenAI's."""

    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_OF_SAMPLING: Final = SamplingFields.__struct_fields__
_ONLY_APPLICATION: Final = tuple(
    name for name in ApplicationFields.__struct_fields__ if name not in _OF_SAMPLING
)
_decode = msgspec.json.Decoder(VLLMFields).decode


def read_fields(request: Generation) -> VLLMFields:
    """These fields of the request's body. Raises BadInput, which names the field."""
    try:
        return _decode(request.body)
    except msgspec.ValidationError as error:
        raise BadInput(str(error)) from None


def needs_application(request: Generation, fields: VLLMFields) -> bool:
    """Whether only vLLM's own application serves the request."""
    if any(getattr(fields, name) for name in _ONLY_APPLICATION):
        return True
    if not isinstance(request, ChatRequest):
        return False
    form = (request.response_format or {}).get("type", "text")
    return form not in ("text", "json_object", "json_schema") or any(map(_is_special, request.messages))


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
