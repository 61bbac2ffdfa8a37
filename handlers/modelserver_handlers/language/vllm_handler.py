"""``vllm_handler``: language models with vLLM's engine, behind OpenAI's API.

Requests join the engine's running batch as they come, so the server sends as many as it takes, and one call
answers one of them. vLLM's own application answers what this package does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from modelserver_handlers.context import Context
from modelserver_handlers.errors import BadInput, PredictionException, WorkerUnusable, first_line
from modelserver_handlers.handler_options import handler_settings
from modelserver_handlers.language.chat import CHAT, COMPLETIONS
from modelserver_handlers.language.embedding import (
    EMBEDDINGS,
    RERANK,
    SCORE,
    embedding_answer,
    require_finite,
)
from modelserver_handlers.language.engine_statistics import EngineStatistics
from modelserver_handlers.language.requests import ChatRequest, CompletionRequest, read_request
from modelserver_handlers.language.responses import MODELS, listed_models
from modelserver_handlers.language.sampling import read_fields, sampling_parameters
from modelserver_handlers.language.templates import explain_template
from modelserver_handlers.language.vllm_answers import Answers
from modelserver_handlers.language.vllm_application import VLLMApplication, is_route
from modelserver_handlers.language.vllm_library import Library, make_engine, read_settings, read_template
from modelserver_handlers.typed.reading import content_of

Result = TypeVar("Result")

_ANY_PATH: Final = "*"
# Requests that wait in the engine for the end of others.
_WAITING: Final = 8
# Seconds between two looks at an engine that may have ended while there was no request to notice that.
_LOOK: Final = 1.0
# Bodies and texts from this size are turned into tokens in a thread.
_LONG: Final = 16_384
_NO_TEMPLATE: Final = (
    "The model's tokenizer has no chat template: it serves /v1/completions, and chats with `handler:"
    " {chat_template: …}` in model-config.yaml"
)
# The engine tells adapters apart by numbers; those that vLLM's application loads have the first ones.
_FIRST_ADAPTER: Final = 1 << 20
# What templates must not be called with.
_RESERVED: Final = frozenset(
    {"chat_template", "conversation", "messages", "tokenize", "return_dict", "tools"}
)


class VLLMHandler:
    """Serves the model that ``handler`` in model-config.yaml names, as TorchServe's ``vllm_handler`` does."""

    _ms_concurrency = 256

    def __init__(self) -> None:
        self._ms_endpoints: dict[str, bool] = {}
        self.engine: Any = None
        self.adapters: dict[str, Any] = {}

    @property
    def _ms_adapters(self) -> tuple[str, ...]:
        return tuple(self.adapters)

    async def initialize(self, context: Context) -> None:
        """Starts the engine. Raises ModelLoadError for settings that cannot be meant."""
        self._library = library = Library()
        config, adapters = read_settings(context)
        self._statistics = EngineStatistics(context, partial(print, flush=True))
        self.engine = make_engine(library, config, context, self._statistics)
        self.adapters = {
            name: library.adapter(name, number, path)
            for number, (name, path) in enumerate(adapters.items(), _FIRST_ADAPTER)
        }
        self._tokenizer = self.engine.get_tokenizer()
        self._template = self._find_template(context)
        names = config.get("served_model_name") or []
        self._names = [config["model"], *([names] if isinstance(names, str) else names)]
        all_names = [context.model_name, *self._names]
        self._application = VLLMApplication(self.engine, config, all_names, adapters, self._template)
        described = self.engine.model_config
        self._defaults, self._length = described.get_diff_sampling_param(), described.max_model_len
        self._ms_concurrency = self.engine.vllm_config.scheduler_config.max_num_seqs + _WAITING
        self._ms_endpoints = _endpoints(await self.engine.get_supported_tasks())
        # Only the application tells thoughts from answers.
        self._reasons = bool(self.engine.vllm_config.structured_outputs_config.reasoning_parser)
        self._template_defaults = dict(config.get("default_chat_template_kwargs") or {})
        self._statistics.reset()
        self._watching = asyncio.create_task(self._watch(context))

    async def _watch(self, context: Context) -> None:
        """Ends this process with its engine: a worker that looks ready would not be."""
        while not self.engine.errored:  # noqa: ASYNC110 - vLLM reports it to nobody
            await asyncio.sleep(_LOOK)
        # Requests that run have the error, too, which says more.
        await asyncio.sleep(_LOOK)
        context._ms_leave(WorkerUnusable("vLLM's engine has ended while it had nothing to do"))

    def _find_template(self, context: Context) -> str | None:
        """The template of chats: the configured one, which may be a file, else the tokenizer's."""
        own = handler_settings(context.model_yaml_config).get("chat_template")
        if own is not None:
            return read_template(str(own), Path(context.system_properties["model_dir"]))
        try:
            template: str = self._tokenizer.get_chat_template()
        except (ValueError, AttributeError):
            return None
        return template

    async def handle(self, data: Any, context: Context) -> list[Any]:
        """Answers one request, or the inputs of one."""
        endpoint = context.get_request_header(0, "url_path") or next(iter(self._ms_endpoints))
        if endpoint == MODELS:
            return [listed_models([context.model_name, *self.adapters])]
        # The server sends rows that the short way does not know whole, as requests of an application.
        is_other = endpoint not in self._ms_endpoints or "path" in context.get_request_parameters(0)
        if is_other and not is_route(endpoint):
            raise PredictionException(f"Unknown API endpoint: {endpoint}", 404)
        try:
            if is_other:
                return [await self._application.answer(endpoint, bytes(data[0]["body"]), context)]
            if self._ms_endpoints[endpoint]:
                rows, texts = enumerate(map(content_of, data)), dict[str, Any]()
                return await asyncio.gather(
                    *(self._pool(endpoint, idx, row, context, texts) for idx, row in rows)
                )
            return [await self._generate(content_of(data[0]), endpoint, context)]
        except self._library.dead as error:
            raise WorkerUnusable(f"vLLM's engine has ended: {first_line(error)}") from error
        except self._library.full as error:
            raise PredictionException(str(error), 503) from error
        except (BadInput, self._library.refused) as error:
            raise PredictionException(str(error), 400) from error

    async def _ms_close(self) -> None:
        self._watching.cancel()
        self.engine.shutdown()
        self._statistics.close()

    # -- chats and completions

    async def _generate(self, body: Any, endpoint: str, context: Context) -> bytes:
        is_chat = endpoint == CHAT
        request: Any = read_request(ChatRequest if is_chat else CompletionRequest, body)
        is_known, adapter = self._adapter(request.model, context.model_name)
        fields = read_fields(request)
        if fields is None or not is_known or (is_chat and self._reasons):
            return await self._application.answer(endpoint, request.body, context)
        prompts = await _aside(len(request.body), self._prompts, request, fields)
        calls = []
        for number, tokens in enumerate(prompts):
            room = self._room(tokens, request.limit or 1)
            parameters = sampling_parameters(self._library, request, fields, self._defaults, room)
            name = f"{context.get_request_id(0)}-{number}"
            calls.append((self._library.tokens(tokens), parameters, name))
        answers = Answers(self.engine, request, context, adapter, self._tokenizer.decode, is_chat)
        sizes = [len(tokens) for tokens in prompts]
        return await (answers.stream(calls, sizes) if request.stream else answers.whole(calls, sizes))

    def _adapter(self, name: str, model: str) -> tuple[bool, Any]:
        """Whether the engine of this handler knows the model that a request names, and its adapter, None for
        the model itself. Raises PredictionException if vLLM's application does not know it either.
        """
        own, _, adapter = name.partition("/")
        if own.partition(":")[0] == model and adapter:
            name = adapter
        if name in self.adapters:
            return True, self.adapters[name]
        if not name or name.partition(":")[0] == model or name in self._names:
            return True, None
        if not self._application.has_adapter(name):
            raise PredictionException(f"The model `{name}` does not exist.", 404)
        return False, None

    def _prompts(self, request: Any, fields: Any) -> list[list[int]]:
        """The tokens of each prompt."""
        if isinstance(request, CompletionRequest):
            return [self._tokens(each) for each in request.prompts]
        if self._template is None:
            raise BadInput(_NO_TEMPLATE)
        messages = [_plain(message) for message in request.messages]
        own = fields.chat_template_kwargs or {}
        wishes = {"add_generation_prompt": True, **self._template_defaults, **own}
        try:
            tokens: list[int] = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=True,
                return_dict=False,
                **{name: value for name, value in wishes.items() if name not in _RESERVED},
            )
        except Exception as error:
            raise BadInput(explain_template(error)) from error
        return [tokens]

    def _tokens(self, content: Any) -> list[int]:
        """The tokens of a text, or the given ones."""
        is_text = isinstance(content, str)
        if not is_text and not (isinstance(content, list) and all(type(each) is int for each in content)):
            raise BadInput("a text or token ids are needed")
        tokens: list[int] = self._tokenizer(content)["input_ids"] if is_text else content
        if not tokens:
            raise BadInput("there is no token in the input")
        return tokens

    def _room(self, tokens: list[int], least: int) -> int:
        """How many tokens may follow a prompt. Raises BadInput if it is too long."""
        room: int = self._length - len(tokens)
        if room < least:
            more = f", {least} are to follow" if least > 1 else ""
            raise BadInput(
                f"The prompt has {len(tokens)} tokens{more}, the model's length is {self._length}."
            )
        return room

    # -- vectors and scores

    async def _pool(
        self, endpoint: str, idx: int, content: Any, context: Context, texts: dict[str, Any]
    ) -> Any:
        """The answer to one input of embeddings, or to a pair. ``texts``: those whose vectors are made."""
        name = f"{context.get_request_id(0)}-{idx}"
        if endpoint != EMBEDDINGS:
            return await self._score(content, name, texts)
        options = context.get_request_parameters(idx)
        size = options.get("dimensions")
        vector, count = await self._embed(content, name, {} if size is None else {"dimensions": size})
        return embedding_answer(vector, options, count)

    async def _embed(self, content: Any, name: str, options: dict[str, Any]) -> tuple[Any, int]:
        """The vector of a text or of token ids, and how many tokens it has."""
        tokens = await _aside(len(content) if isinstance(content, str) else 0, self._tokens, content)
        self._room(tokens, 0)
        data = await self._encode(tokens, self._library.pooling(task="embed", **options), name)
        require_finite(float(data.sum()))
        return data.float().numpy(), len(tokens)

    async def _score(self, content: Any, name: str, texts: dict[str, Any]) -> dict[str, Any]:
        """How well two texts fit: by the model that reads both, or the angle between their vectors."""
        if not isinstance(content, (list, tuple)) or not all(isinstance(each, str) for each in content):
            raise BadInput("a pair of two texts is needed")
        if EMBEDDINGS in self._ms_endpoints:
            for side, text in enumerate(content):
                if text not in texts:
                    texts[text] = asyncio.ensure_future(self._embed(text, f"{name}-{side}", {}))
            (one, first), (other, second) = await asyncio.gather(*map(texts.__getitem__, content))
            length = float((one @ one) ** 0.5 * (other @ other) ** 0.5) or 1.0
            return {"score": float(one @ other) / length, "tokens": second, "query_tokens": first}
        encoded = await _aside(sum(map(len, content)), self._tokenizer, *content)
        tokens, kinds = encoded["input_ids"], encoded.get("token_type_ids") or ()
        self._room(tokens, 0)
        # Where the second text begins, for models that tell both apart.
        more = {"extra_kwargs": {"compressed_token_type_ids": kinds.index(1)}} if 1 in kinds else {}
        data = await self._encode(tokens, self._library.pooling(task="classify", **more), name)
        if data.numel() != 1:
            raise BadInput(f"this model gives a text {data.numel()} classes, which are no score")
        require_finite(float(data))
        return {"score": float(data), "tokens": len(tokens)}

    async def _encode(self, tokens: list[int], parameters: Any, name: str) -> Any:
        """What the engine makes of these tokens."""
        async for output in self.engine.encode(self._library.tokens(tokens), parameters, name):
            if output.finished:
                return output.outputs.data
        raise PredictionException("The engine has ended the request.", 500)


async def _aside(size: int, call: Callable[..., Result], *arguments: Any) -> Result:
    """What a call returns, which takes long with a text of this size: then in a thread."""
    return call(*arguments) if size < _LONG else await asyncio.to_thread(call, *arguments)


def _endpoints(tasks: Any) -> dict[str, bool]:
    """What a model of these tasks serves, and whether each input is a row."""
    if "generate" in tasks:
        return {CHAT: False, COMPLETIONS: False, _ANY_PATH: False}
    if "embed" in tasks:
        return {EMBEDDINGS: True, RERANK: True, SCORE: True, _ANY_PATH: False}
    return {SCORE: True, RERANK: True, _ANY_PATH: False}


def _plain(message: Any) -> dict[str, Any]:
    """A message as templates read it: one text."""
    content = message.content
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content)
    plain = {"role": "system" if message.role == "developer" else message.role, "content": content or ""}
    return plain if message.name is None else {**plain, "name": message.name}
