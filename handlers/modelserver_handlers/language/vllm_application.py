"""vLLM's own application over the engine of a handler, for requests that this package does not serve."""

# ruff: noqa: PLC0415 - it is imported where it is used only

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from modelserver_handlers.asgi import AsgiCall, Message
from modelserver_handlers.context import Context
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.responses import report_usage

# Others of its routes are for whoever runs it: they scale, profile or stop.
_ROUTES: Final = re.compile(r"v[12]/.+|tokenize|detokenize|pooling|classify|score|rerank")


class _Named(msgspec.Struct):
    model: str = ""


class _Usage(msgspec.Struct):
    """By the names of chats, and by those of ``/v1/responses``."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Used(msgspec.Struct):
    usage: _Usage | None = None
    response: _Used | None = None


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_each = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_used = msgspec.json.Decoder(_Used).decode
_JSON: Final = [("content-type", "application/json")]


@dataclass(slots=True, eq=False)
class VLLMApplication:
    """It is made for the first request that needs it, as that takes seconds.

    Args:
        engine: of the handler.
        settings: ``vllm_engine_config``; what is not the application's is the engine's.
        names: that requests use for the model, first its own.
        adapters: their paths by name.
        template: of chats.
    """

    _engine: Any
    _settings: Mapping[str, Any]
    _names: list[str]
    _adapters: Mapping[str, str]
    _template: str | None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _app: Any = field(default=None, init=False)

    def has_adapter(self, name: str) -> bool:
        """Whether one of this name was loaded at run time."""
        return self._app is not None and name in self._app.state.openai_serving_models.lora_requests

    async def answer(self, path: str, body: bytes, context: Context) -> bytes:
        """The response to a request, with its status and headers, whole or as the last of its parts.

        Raises the engine's own error if that has ended.
        """
        scope = context.get_request_parameters(0)
        if "path" not in scope:
            scope = {"path": f"/{path}", "headers": _JSON}
        async with self._lock:
            if self._app is None:
                self._app = await self._make()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def count(message: Message) -> None:
                if self._engine.errored:
                    # The application would answer with 500 from now on, and end streams as if whole.
                    raise self._engine.dead_error
                _count_tokens(message.get("body", b""), context)
                await send(message)

            await self._app(scope, receive, count)

        try:
            return await AsgiCall(app, scope, self._canonical(body), context).answer()
        except PredictionException as error:
            if self._engine.errored:
                raise self._engine.dead_error from error
            raise

    def _canonical(self, body: bytes) -> bytes:
        """The body with a name of the model, or of an adapter, that the application knows."""
        try:
            name = _decode_named(body).model
        except (msgspec.DecodeError, UnicodeDecodeError):
            return body
        own, _, adapter = name.partition("/")
        model = own.partition(":")[0]
        if model != self._names[0]:
            return body
        known = f"{model}/{adapter}" if adapter in self._adapters else adapter or model
        return body if known == name else msgspec.json.encode({**_decode_each(body), "model": known})

    async def _make(self) -> Any:
        build_app, init_app_state, parser = await asyncio.to_thread(import_application)
        model = self._names[0]
        adapters = [
            f"{prefix}{name}={path}" for name, path in self._adapters.items() for prefix in ("", f"{model}/")
        ]
        flags = ["--model", self._settings["model"], "--served-model-name", *self._names]
        arguments = parser.parse_args([*flags, "--lora-modules", *adapters] if adapters else flags)
        for name, value in self._settings.items():
            if hasattr(arguments, name) and name != "served_model_name":
                setattr(arguments, name, value)
        arguments.chat_template = self._template
        # The engine's has what other settings have made of it, such as the parser of thoughts.
        arguments.structured_outputs_config = self._engine.vllm_config.structured_outputs_config
        tasks = await self._engine.get_supported_tasks()
        app = build_app(arguments, tasks, self._engine.model_config)
        await init_app_state(self._engine, app.state, arguments, tasks)
        return app


def _count_tokens(part: bytes, context: Context) -> None:
    """Reports the usage that a response, or an event of one, has."""
    if b'"usage"' not in part:
        return
    for line in part.splitlines():
        try:
            used = _decode_used(line.removeprefix(b"data: "))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if (usage := (used.response or used).usage) is not None:
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            report_usage(context, prompt + usage.input_tokens, completion + usage.output_tokens)


def is_route(path: str) -> bool:
    """Whether requests to this path may reach the application."""
    return _ROUTES.fullmatch(path) is not None


def import_application() -> tuple[Any, Any, Any]:
    """What makes the application and its state, and the parser of its settings."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return build_app, init_app_state, make_arg_parser(FlexibleArgumentParser())
