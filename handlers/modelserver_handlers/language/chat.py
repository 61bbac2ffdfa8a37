"""``modelserver.ChatModel``: a class with ``chat`` that is served behind OpenAI's API."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from modelserver_handlers.context import Context
from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.errors import BadInput, PredictionException
from modelserver_handlers.language.events import EventStream
from modelserver_handlers.language.requests import ChatRequest, CompletionRequest, Generation, read_request
from modelserver_handlers.language.responses import (
    DONE,
    MODELS,
    ReplyWriter,
    StopFilter,
    TokenUsage,
    listed_models,
    report_usage,
)
from modelserver_handlers.typed.handler import HandlerSignature
from modelserver_handlers.typed.reading import content_of
from modelserver_handlers.typed.signature import described


@dataclass(frozen=True, slots=True)
class PromptSize:
    """How many tokens a prompt has, and how many may follow.

    A method that knows yields it first, and then a piece for each token.
    """

    tokens: int
    room: int


Piece: TypeAlias = "str | dict[str, Any] | PromptSize"
Pieces: TypeAlias = "str | dict[str, Any] | Iterator[Piece] | AsyncIterator[Piece]"

CHAT: Final = "v1/chat/completions"
COMPLETIONS: Final = "v1/completions"
# Requests at a time of a model whose methods are asynchronous.
_MANY: Final = 256


class _PlainMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str


class _PlainChat(msgspec.Struct):
    """The field that every chat has."""

    messages: list[_PlainMessage]


class ChatModel:
    """Override ``chat``, and ``load`` for what it needs; ``complete``, if the model completes texts, too.

    Each returns the answer, or yields its pieces; it may be a generator, a function, or ``async``. Ordinary
    functions run in a thread, for one request at a time unless ``concurrency`` is set; others wait in the
    server's queue. Stop texts, ``n`` and the limit of tokens (pieces) are applied to what they yield.

    ``/predictions`` with messages is answered with the text alone.

    Raise :class:`~modelserver_handlers.errors.PredictionException` with a status for requests that cannot be
    answered.
    """

    concurrency: ClassVar[int] = 0
    # What may follow the model's name in a request's ``model``, after a slash.
    adapters: Collection[str] = ()
    context: Any
    _executor: ThreadPoolExecutor

    def load(self, context: Any) -> Any:
        """Called once, before the first request; may be ``async``."""

    def chat(self, request: ChatRequest) -> Pieces:
        """The answer to a chat, as a text or its pieces.

        A piece that is a dict is a part of the message, such as ``{"tool_calls": […]}``.
        """
        raise NotImplementedError

    def complete(self, request: CompletionRequest, prompt: str | list[int]) -> Pieces:
        """The continuation of one of the request's prompts."""
        raise NotImplementedError

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, for the usage; by default its words."""
        return len(text.split())

    # -- how the server calls it

    @property
    def _ms_endpoints(self) -> dict[str, bool]:
        kind = type(self)
        endpoints = {} if kind.chat is ChatModel.chat else {CHAT: False}
        return endpoints if kind.complete is ChatModel.complete else {**endpoints, COMPLETIONS: False}

    @property
    def _ms_adapters(self) -> tuple[str, ...]:
        return tuple(self.adapters)

    @property
    def _ms_concurrency(self) -> int:
        return self.concurrency or (_MANY if _is_asynchronous(self.chat) else 1)

    def _ms_signature(self) -> HandlerSignature:
        return HandlerSignature(described(_PlainChat, "input_0"), described(str, "output_0"))

    async def initialize(self, context: Any) -> None:
        """Calls ``load``. Raises TypeError if no method answers anything."""
        if not self._ms_endpoints:
            raise TypeError(f"{type(self).__name__}.chat(self, request) is missing")
        self.context = context
        self._executor = ThreadPoolExecutor(self._ms_concurrency, "chat", initializer=enter_thread)
        loaded = self.load(context)
        if inspect.isawaitable(loaded):
            await loaded

    async def handle(self, data: Any, context: Context) -> list[Any]:
        """Answers one request."""
        endpoint = context.get_request_header(0, "url_path")
        if endpoint == MODELS:
            name = str(context.model_name)
            return [listed_models([name, *(f"{name}/{adapter}" for adapter in self.adapters)])]
        is_chat = endpoint in (CHAT, None, "")
        if (endpoint or CHAT) not in self._ms_endpoints:
            raise PredictionException(f"Unknown API endpoint: {endpoint}", 404)
        try:
            request: Any = read_request(ChatRequest if is_chat else CompletionRequest, content_of(data[0]))
        except BadInput as error:
            raise PredictionException(str(error), 400) from None
        own, _, adapter = request.model.partition("/")
        if adapter and own.partition(":")[0] == context.model_name and adapter not in self.adapters:
            raise PredictionException(f"The model `{request.model}` does not exist.", 404)
        answers = _Answers(self, request, context, is_chat=is_chat)
        if request.stream:
            return [await answers.stream()]
        return [await answers.whole() if endpoint else await answers.text()]

    async def _ms_iterate(self, call: Callable[[], Any]) -> AsyncIterator[Piece]:
        """What the model's method returns or yields, wherever it runs."""
        method = call.func  # type: ignore[attr-defined]
        if not _is_asynchronous(method):
            async for piece in _in_thread(self._executor, call):
                yield piece
            return
        pieces = call()
        if inspect.isawaitable(pieces):
            pieces = await pieces
        if isinstance(pieces, (str, dict)):
            yield pieces
        elif isinstance(pieces, AsyncIterator):
            async for piece in pieces:
                yield piece
        else:
            for piece in pieces:
                yield piece


def _is_asynchronous(method: Any) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


class _Answers:
    """The choices that answer one request."""

    def __init__(self, model: ChatModel, request: Generation, context: Context, *, is_chat: bool) -> None:
        self._model = model
        self._request = request
        self._context = context
        self._is_chat = is_chat
        name = request.model or str(context.model_name)
        self._reply = ReplyWriter(str(context.get_request_id(0)), name, chat=is_chat)
        calls: list[Callable[[], Pieces]]
        if isinstance(request, CompletionRequest):
            calls = [partial(model.complete, request, each) for each in request.prompts]
        else:
            calls = [partial(model.chat, request)]  # type: ignore[arg-type]
        self._calls = [call for call in calls for _ in range(request.choices)]

    async def text(self) -> str:
        """The text alone of the first choice, for clients of other APIs."""
        pieces = _Choice(self._request).pieces(self._model._ms_iterate(self._calls[0]))
        return "".join([_content(piece) async for piece in pieces])

    async def whole(self) -> bytes:
        choices, texts, counted = [], [], []
        for index, call in enumerate(self._calls):
            choice = _Choice(self._request)
            more: dict[str, Any] = {}
            text = ""
            async for piece in choice.pieces(self._model._ms_iterate(call)):
                if isinstance(piece, str):
                    text += piece
                elif isinstance(piece, dict):
                    _merge(more, piece)
            choices.append(self._reply.choice(index, text, choice.finish, **more))
            texts.append(text + _content(more))
            counted.append(choice)
        self._context.set_response_content_type(0, "application/json")
        return self._reply.whole(choices, self._usage(texts, counted))

    async def stream(self) -> bytes:
        events, reply = EventStream(self._context), self._reply
        texts, counted = [], []
        for index, call in enumerate(self._calls):
            choice, text = _Choice(self._request), []
            # With the first piece: a request that fails before is answered with its status.
            role = reply.role(index) if self._is_chat else b""
            async for piece in choice.pieces(self._model._ms_iterate(call)):
                text.append(_content(piece))
                if isinstance(piece, str):
                    events.write(role + reply.text(piece, index))
                else:
                    events.write(role + reply.event(index, piece))
                role = b""
                if events.is_behind:
                    await events.drain()
            events.write(role + reply.event(index, {} if self._is_chat else "", choice.finish))
            texts.append("".join(text))
            counted.append(choice)
        usage = self._usage(texts, counted)
        last = reply.usage(usage) if self._request.reports_usage else b""
        return events.take() + last + DONE

    def _usage(self, texts: list[str], choices: list[_Choice]) -> TokenUsage:
        """By what the model has said, otherwise by the texts."""
        count, request = self._model.count_tokens, self._request
        sizes = [choice.prompt.tokens for choice in choices if choice.prompt is not None]
        if len(sizes) == len(choices):
            prompts, counts = sizes[:: request.choices], [choice.count for choice in choices]
        elif isinstance(request, CompletionRequest):
            prompts = [count(each) if isinstance(each, str) else len(each) for each in request.prompts]
            counts = list(map(count, texts))
        else:
            prompts = [count(message.text) for message in request.messages]  # type: ignore[attr-defined]
            counts = list(map(count, texts))
        return report_usage(self._context, sum(prompts), sum(counts))


class _Choice:
    """Applies the request's limits to one answer.

    ``finish`` says why it has ended, ``count`` how many pieces of text it had.
    """

    def __init__(self, request: Generation) -> None:
        self._limit = request.limit
        self._filter = StopFilter(request.stops)
        self.finish = "stop"
        self.count = 0
        self.prompt: PromptSize | None = None

    async def pieces(self, source: AsyncIterator[Piece]) -> AsyncIterator[str | dict[str, Any]]:
        try:
            async for piece in source:
                if isinstance(piece, PromptSize):
                    self.prompt, self._limit = piece, piece.room
                    continue
                if not isinstance(piece, str):
                    self.finish = "tool_calls" if "tool_calls" in piece else self.finish
                    yield piece
                    continue
                if text := self._filter.add(piece):
                    yield text
                self.count += 1
                if self._filter.is_cut:
                    return
                if self.count == self._limit:
                    self.finish = "length"
                    break
            if text := self._filter.rest():
                yield text
        finally:
            await source.aclose()  # type: ignore[attr-defined]


def _content(piece: str | dict[str, Any]) -> str:
    """The text of a piece, or of a part of a message."""
    content = piece if isinstance(piece, str) else piece.get("content")
    return content if isinstance(content, str) else ""


def _merge(message: dict[str, Any], part: dict[str, Any]) -> None:
    """Adds a part of a message: lists grow, other fields are replaced."""
    for name, value in part.items():
        if isinstance(value, list):
            message.setdefault(name, []).extend(value)
        else:
            message[name] = value


_END: Final = object()
# Pieces that may wait for their client in the worker.
_AHEAD: Final = 1024


async def _in_thread(executor: ThreadPoolExecutor, call: Callable[[], Any]) -> AsyncIterator[Piece]:
    """The pieces of a call that runs in a thread, which ends at the next piece if nobody takes them.

    It waits while many have not been taken.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Any] = asyncio.Queue()
    has_room = threading.Event()
    is_left = False

    def put(piece: Any) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, piece)

    def run() -> None:
        try:
            # Its client may have left while the thread computed another's.
            pieces: Any = () if is_left else call()
            if isinstance(pieces, (str, dict)):
                put(pieces)
                return
            for piece in pieces:
                if queue.qsize() >= _AHEAD:
                    has_room.clear()
                    # Unless the last ones have been taken meanwhile.
                    if queue.qsize() >= _AHEAD and not is_left:
                        has_room.wait()
                if is_left:
                    break
                put(piece)
            if hasattr(pieces, "close"):
                pieces.close()
        finally:
            put(_END)

    running = executor.submit(run)
    try:
        while (piece := await queue.get()) is not _END:
            if not has_room.is_set() and queue.qsize() < _AHEAD // 2:
                has_room.set()
            yield piece
        await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        is_left = True
        has_room.set()
        # The call lasts until its thread is free: the server replaces a worker whose threads never are.
        while not running.cancel() and await queue.get() is not _END:
            pass
        raise
    finally:
        is_left = True
        has_room.set()
