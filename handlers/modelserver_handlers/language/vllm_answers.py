"""From what vLLM's engine generates to the documents and events of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from modelserver_handlers.context import Context
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.events import EventStream
from modelserver_handlers.language.logprobs import chat_logprobs, completion_logprobs
from modelserver_handlers.language.responses import DONE, ReplyWriter, report_usage

_UNUSABLE: Final = "The engine cannot use the schema, or other structure, that the answer is to have."

Call: TypeAlias = "tuple[Any, Any, str]"


@dataclass(eq=False)
class Answers:
    """The choices that answer one request, from a call of the engine for each of its prompts.

    A call is what ``generate`` takes: prompt, parameters and id. ``sizes`` are the tokens of the prompts.
    """

    _engine: Any
    _request: Any
    _context: Context
    _adapter: Any
    _decode: Callable[[int], str]
    _is_chat: bool
    _is_structured: bool = field(default=False, init=False)
    _count: int = field(default=0, init=False)
    # Of completions: where the text of each choice's next token begins.
    _offsets: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        request, context = self._request, self._context
        name = request.model or str(context.model_name)
        self._reply = ReplyWriter(str(context.get_request_id(0)), name, chat=self._is_chat)
        self._wants_logprobs = bool(request.logprobs) if self._is_chat else request.logprobs is not None

    async def whole(self, calls: list[Call], sizes: list[int]) -> bytes:
        """All choices in one document."""
        self._is_structured = calls[0][1].structured_outputs is not None
        choices: list[Any] = [None] * (len(calls) * self._request.choices)

        async def generate(number: int, call: Call) -> None:
            async with aclosing(self._engine.generate(*call, lora_request=self._adapter)) as outputs:
                async for result in outputs:
                    for output in result.outputs:
                        index = number * self._request.choices + output.index
                        choices[index] = self._choice(index, output)

        await _all([generate(number, call) for number, call in enumerate(calls)])
        if None in choices:
            raise PredictionException("The engine has ended the request.", 500)
        self._context.set_response_content_type(0, "application/json")
        return self._reply.whole(choices, report_usage(self._context, sum(sizes), self._count))

    async def stream(self, calls: list[Call], sizes: list[int]) -> bytes:
        """The events of all choices, as they come."""
        self._is_structured = calls[0][1].structured_outputs is not None
        events = EventStream(self._context)

        async def generate(number: int, call: Call) -> None:
            first = number * self._request.choices
            is_new = self._is_chat
            async with aclosing(self._engine.generate(*call, lora_request=self._adapter)) as outputs:
                async for result in outputs:
                    if is_new:
                        is_new = False
                        for index in range(self._request.choices):
                            events.write(self._reply.role(first + index))
                    for output in result.outputs:
                        events.write(self._event(first + output.index, output))
                    if events.is_behind:
                        await events.drain()

        await _all([generate(number, call) for number, call in enumerate(calls)])
        usage = report_usage(self._context, sum(sizes), self._count)
        last = self._reply.usage(usage) if self._request.reports_usage else b""
        return events.take() + last + DONE

    def _event(self, index: int, output: Any) -> bytes:
        self._count += len(output.token_ids)
        text, finish = output.text, output.finish_reason
        if finish is None and not self._wants_logprobs:
            return self._reply.text(text, index)
        more = self._more(index, output)
        return self._reply.event(index, {"content": text} if self._is_chat else text, finish, **more)

    def _choice(self, index: int, output: Any) -> dict[str, Any]:
        self._count += len(output.token_ids)
        more = self._more(index, output)
        # A field of the choice, not of its message.
        stopped = {"stop_reason": more.pop("stop_reason")} if "stop_reason" in more else {}
        return {**self._reply.choice(index, output.text, output.finish_reason, **more), **stopped}

    def _more(self, index: int, output: Any) -> dict[str, Any]:
        """The fields of a choice beside its text. Raises PredictionException if the engine has failed."""
        if output.finish_reason == "error":
            # No first token fits.
            if self._is_structured and self._count <= self._request.choices:
                raise PredictionException(_UNUSABLE, 400)
            raise PredictionException("The engine could not generate the answer.", 500)
        more = {} if output.stop_reason is None else {"stop_reason": output.stop_reason}
        if not self._wants_logprobs:
            return more
        if self._is_chat:
            most = self._request.top_logprobs or 0
            return {**more, "logprobs": chat_logprobs(output, most, self._decode)}
        offset = self._offsets.get(index, 0)
        most = self._request.logprobs
        logprobs = completion_logprobs(output, most, offset, self._decode)
        self._offsets[index] = offset + sum(map(len, logprobs["tokens"]))
        return {**more, "logprobs": logprobs}


async def _all(calls: list[Coroutine[Any, Any, None]]) -> None:
    """Waits for these; ends the others if one fails."""
    if len(calls) == 1:
        await calls[0]
        return
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
