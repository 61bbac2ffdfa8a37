"""The probabilities of tokens, in the forms of OpenAI's API, from vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

# JSON has no infinity.
_LEAST: Final = -9999.0


def chat_logprobs(output: Any, most: int, decode: Callable[[int], str]) -> dict[str, Any]:
    """Formats the log probabilities of a part of a chat's answer, with ``most`` alternatives each."""
    content = []
    for token, options in zip(output.token_ids, output.logprobs, strict=False):
        best = list(options.items())[:most]
        alternatives = [_entry(_text(each, option, decode), option) for each, option in best]
        chosen = _entry(_text(token, options[token], decode), options[token])
        content.append({**chosen, "top_logprobs": alternatives})
    return {"content": content}


def _entry(text: str, option: Any) -> dict[str, Any]:
    return {"token": text, "logprob": _number(option), "bytes": list(text.encode("utf-8", "replace"))}


def completion_logprobs(output: Any, most: int, offset: int, decode: Callable[[int], str]) -> dict[str, Any]:
    """Formats the log probabilities of a part of a completion that begins at ``offset`` of its text.

    The token that was chosen is there beside ``most`` alternatives.
    """
    tokens: list[str] = []
    numbers: list[float] = []
    offsets: list[int] = []
    best: list[dict[str, float]] = []
    for token, options in zip(output.token_ids, output.logprobs, strict=False):
        text = _text(token, options[token], decode)
        tokens.append(text)
        numbers.append(_number(options[token]))
        offsets.append(offset)
        offset += len(text)
        items: Sequence[Any] = list(options.items())[: most + 1]
        best.append({_text(each, option, decode): _number(option) for each, option in items})
    return {"text_offset": offsets, "token_logprobs": numbers, "tokens": tokens, "top_logprobs": best}


def _text(token: int, option: Any, decode: Callable[[int], str]) -> str:
    return decode(token) if option.decoded_token is None else option.decoded_token


def _number(option: Any) -> float:
    return max(float(option.logprob), _LEAST)
