"""A handler over the pretended engine, and requests to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.handlers.parts import Stream

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.language.chat import CHAT
from modelserver_handlers.language.vllm_handler import VLLMHandler

if TYPE_CHECKING:
    import asyncio

USER = [{"role": "user", "content": "one two three"}]


class Bench:
    """A handler whose engine has started; each call has a context of its own, as in a worker."""

    def __init__(self, folder="/", config=None, **settings):
        engine = {"model": "some/model", **settings.pop("vllm_engine_config", {})}
        document = {**(config or {}), "handler": {"vllm_engine_config": engine, **settings}}
        self.context = Context("m", folder, None, 1, None, "0", model_yaml_config=document)
        self.handler = VLLMHandler()
        self.state = BatchState()
        self.gate: asyncio.Event | None = None

    async def start(self):
        await self.handler.initialize(self.context)
        return self

    @property
    def engine(self):
        return self.handler.engine

    def parameters(self):
        """Of the engine's last call."""
        return self.engine.calls[-1][1]

    async def send(self, endpoint=CHAT, **fields):
        """The answer to a request, with what was streamed before."""
        if endpoint == CHAT:
            fields.setdefault("messages", USER)
        stream: Any = Stream()
        stream.gate = self.gate
        self.state = BatchState(["r"], properties=[{"url_path": endpoint}])
        self.state.stream = stream
        data = [{"body": json.dumps({"model": "m", **fields}).encode()}]
        (answer,) = await self.handler.handle(data, self.context._ms_of_request(self.state))
        return b"".join([*stream.parts, answer]).decode()

    async def whole(self, endpoint=CHAT, **fields):
        return json.loads(await self.send(endpoint, **fields))

    async def events(self, endpoint=CHAT, **fields):
        """The documents of the events, without the last."""
        return Stream().events((await self.send(endpoint, stream=True, **fields)).encode())

    async def rows(self, endpoint, *rows, **options):
        """The answers to rows of one request."""
        return await self.call(endpoint, *({"data": row} for row in rows), parameters=options)

    async def call(self, endpoint, *data, parameters=None):
        """What the handler answers to these rows."""
        fields = {"properties": {"url_path": endpoint}, "parameters": parameters or {}}
        state = BatchState(["r"], **{name: [value] * len(data) for name, value in fields.items()})
        return await self.handler.handle(list(data), self.context._ms_of_request(state))
