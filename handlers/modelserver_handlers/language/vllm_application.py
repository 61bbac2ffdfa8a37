"""vLLM's own application over the engine of a handler, for requests that this package does not serve."""

# ruff: noqa: PLC0415 - it is imported where it is used only

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from modelserver_handlers.asgi import AsgiCall
from modelserver_handlers.context import Context

SETTINGS: Final = frozenset(
    {
        "chat_template_content_format",
        "default_chat_template_kwargs",
        "enable_auto_tool_choice",
        "enable_prompt_tokens_details",
        "exclude_tools_when_tool_choice_none",
        "tool_call_parser",
    }
)
"""Fields of ``vllm_engine_config`` that are the application's, not the engine's."""

# Others of its routes are for whoever runs it: they scale, profile or stop.
_ROUTES: Final = re.compile(r"v[12]/.+|tokenize|detokenize|pooling|classify|score|rerank")
_JSON: Final = [("content-type", "application/json")]


class VLLMApplication:
    """It is made for the first request that needs it, as that takes seconds.

    Args:
        engine: of the handler.
        settings: ``vllm_engine_config``; what is not the application's is the engine's.
        names: that requests use for the model, first its own.
        adapters: their paths by name.
    """

    def __init__(
        self,
        engine: Any,
        settings: Mapping[str, Any],
        names: list[str],
        adapters: Mapping[str, str],
        template: str | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._names = names
        self._adapters = adapters
        self._template = template
        self._lock = asyncio.Lock()
        self._app: Any = None

    async def answer(self, path: str, body: bytes, context: Context) -> bytes:
        """The response to a request, with its status and headers, whole or as the last of its parts."""
        scope = context.get_request_parameters(0)
        if "path" not in scope:
            scope = {"path": f"/{path}", "headers": _JSON}
        async with self._lock:
            if self._app is None:
                self._app = await self._make()
        return await AsgiCall(self._app, scope, body, context).answer()

    async def _make(self) -> Any:
        build_app, init_app_state, parser = await asyncio.to_thread(_import)
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
        tasks = await self._engine.get_supported_tasks()
        app = build_app(arguments, tasks, self._engine.model_config)
        await init_app_state(self._engine, app.state, arguments, tasks)
        return app


def is_route(path: str) -> bool:
    """Whether requests to this path may reach the application."""
    return _ROUTES.fullmatch(path) is not None


def _import() -> tuple[Any, Any, Any]:
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return build_app, init_app_state, make_arg_parser(FlexibleArgumentParser())
