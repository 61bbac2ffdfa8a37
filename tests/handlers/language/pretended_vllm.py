"""A pretended vLLM: the modules and names that the handler uses, as strict about arguments as the real one.

Its engine repeats the words of the prompt, a token at a time.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

LENGTH = 20
# The token after which the engine dies, and the one that it ends with an error.
DEADLY, FAILING = "die", "fail"
# A schema that the engine refuses when it gets the request.
IMPOSSIBLE = {"type": "nothing"}
# One that no token fits.
ENDLESS = {"$ref": "#"}


# A request that cannot be answered, an engine that is full, and one whose process has ended.
VLLMClientError, GracefulHTTPError, EngineDeadError = (
    type(name, (Exception,), {}) for name in ("VLLMClientError", "GracefulHTTPError", "EngineDeadError")
)
# Whether outputs hold everything so far, what is new, or come once.
RequestOutputKind = Enum("RequestOutputKind", "CUMULATIVE DELTA FINAL_ONLY")
UsageContext = Enum("UsageContext", "OPENAI_API_SERVER")


@dataclass
class StructuredOutputsParams:
    """What an answer must look like."""

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None

    def __post_init__(self):
        if [self.json, self.json_object, self.regex].count(None) != 2:
            raise VLLMClientError("one kind of structured outputs")


@dataclass
class SamplingParams:
    """How tokens are chosen."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    min_tokens: int = 0
    max_tokens: int = 16
    logprobs: int | None = None
    logit_bias: Any = None
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    @classmethod
    def from_optional(cls, **fields):
        if not 0 <= fields.get("min_p", 0.0) <= 1:
            raise VLLMClientError("min_p must be in [0, 1]")
        return cls(**fields)


@dataclass
class PoolingParams:
    """What is made of an input."""

    task: str
    dimensions: int | None = None
    extra_kwargs: dict[str, Any] | None = None


@dataclass
class LoRARequest:
    """An adapter."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class AsyncEngineArgs:
    """The settings of an engine."""

    model: str
    max_num_seqs: int = 4
    max_model_len: int = LENGTH
    tensor_parallel_size: int = 1
    enable_lora: bool = False
    served_model_name: Any = None
    disable_log_stats: bool = False
    runner: str = "generate"
    reasoning_parser: str = ""


def tokens_input(prompt_token_ids):
    return {"type": "token", "prompt_token_ids": prompt_token_ids}


class Tokenizer:
    """A token is a word; roles are words, too."""

    def __init__(self, template):
        self.words: list[str] = []
        self._template = template

    def __call__(self, text, pair=""):
        ids = [self._id(word) for word in text.split()]
        if not pair:
            return {"input_ids": ids}
        others = [self._id(word) for word in pair.split()]
        return {"input_ids": ids + others, "token_type_ids": [0] * len(ids) + [1] * len(others)}

    def _id(self, word):
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def decode(self, token):
        return f"{self.words[token]} "

    def get_chat_template(self):
        if self._template is None:
            raise ValueError("no template")
        return self._template

    def apply_chat_template(self, messages, *, chat_template, tokenize, return_dict, **wishes):
        import jinja2

        assert (tokenize, return_dict) == (True, False)

        def refuse(message):
            raise jinja2.TemplateError(message)

        template = jinja2.Environment().from_string(chat_template)
        return self(template.render(messages=messages, raise_exception=refuse, **wishes))["input_ids"]


class PrometheusStatLogger:
    """Its own would count each token."""

    def __init__(self, vllm_config, engine_indexes):
        raise AssertionError("no other logger of this kind")


class AsyncLLM:
    """The engine. ``aborted`` are the requests that nobody wanted to the end."""

    dead_error = EngineDeadError("EngineCore encountered an issue")

    def __init__(self, arguments, stat_loggers):
        self.errored = False
        self.arguments = arguments
        self.running: set[str] = set()
        self.model_config = SimpleNamespace(
            max_model_len=arguments.max_model_len, get_diff_sampling_param=lambda: {"top_k": 7}
        )
        scheduler = SimpleNamespace(max_num_seqs=arguments.max_num_seqs)
        structured = SimpleNamespace(reasoning_parser=arguments.reasoning_parser)
        self.vllm_config = SimpleNamespace(scheduler_config=scheduler, structured_outputs_config=structured)
        self.loggers = [kind(vllm_config=self.vllm_config, engine_indexes=[0]) for kind in stat_loggers]
        assert all(isinstance(each, PrometheusStatLogger) for each in self.loggers)
        for each in self.loggers:
            each.log_engine_initialized()
        self.calls: list[tuple[Any, Any, str, Any]] = []
        self.aborted: list[str] = []
        self.applications = 0
        self.is_shut_down = False
        self._tokenizer = Tokenizer(None if arguments.model == "plain" else TEMPLATE)

    @classmethod
    def from_engine_args(cls, arguments, *, usage_context, stat_loggers):
        assert usage_context is UsageContext.OPENAI_API_SERVER
        return cls(arguments, stat_loggers)

    def step(self, *, new_tokens=0, preempted=0):
        """Reports the state of the scheduler, as the real one does after each step: a running request takes a
        quarter of the cache, and each token of a prompt but the first was in it.
        """
        most = self.arguments.max_num_seqs
        looked_up = SimpleNamespace(queries=new_tokens, hits=max(0, new_tokens - 1))
        scheduler = SimpleNamespace(
            num_running_reqs=min(most, len(self.running)),
            num_waiting_reqs=max(0, len(self.running) - most),
            num_skipped_waiting_reqs=0,
            kv_cache_usage=min(1.0, len(self.running) / 4),
            prefix_cache_stats=looked_up,
        )
        for logger in self.loggers:
            logger.record(scheduler, SimpleNamespace(num_preempted_reqs=preempted), mm_cache_stats=None)

    def shutdown(self):
        self.is_shut_down = self.errored = True

    def get_tokenizer(self):
        return self._tokenizer

    async def get_supported_tasks(self):
        return (self.arguments.runner,)

    async def generate(self, prompt, parameters, request_id, *, lora_request=None):
        self.calls.append((prompt, parameters, request_id, lora_request))
        tokens = prompt["prompt_token_ids"]
        if parameters.structured_outputs is not None and parameters.structured_outputs.json == IMPOSSIBLE:
            raise VLLMClientError("Grammar error: Unsupported type nothing")
        assert parameters.output_kind is not RequestOutputKind.CUMULATIVE
        self.running.add(request_id)
        self.step(new_tokens=len(tokens))
        try:
            parts = list(self._parts(tokens, parameters))
            if parameters.structured_outputs is not None and parameters.structured_outputs.json == ENDLESS:
                parts = parts[:1]
                parts[0].finish_reason = "error"
            if parameters.output_kind is RequestOutputKind.FINAL_ONLY:
                for _ in parts:
                    await asyncio.sleep(0)
                parts = [_joined(parts)]
            for part in parts:
                if part.text == f"{DEADLY} ":
                    self.errored = True
                    raise self.dead_error
                outputs = [SimpleNamespace(**{**vars(part), "index": index}) for index in range(parameters.n)]
                yield SimpleNamespace(outputs=outputs)
                await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise
        finally:
            self.running.discard(request_id)
            self.step()

    def _parts(self, tokens, parameters):
        words = [self._tokenizer.decode(token) for token in tokens][: parameters.max_tokens]
        for number, (token, word) in enumerate(zip(tokens, words, strict=False), 1):
            is_last = number == len(words)
            finish = ("stop" if len(words) == len(tokens) else "length") if is_last else None
            options = {
                each: SimpleNamespace(logprob=-float(rank), decoded_token=self._tokenizer.decode(each))
                for rank, each in enumerate([token, *(other for other in tokens if other != token)])
            }
            yield SimpleNamespace(
                text=word,
                token_ids=[token],
                logprobs=None if parameters.logprobs is None else [options],
                finish_reason="error" if word == f"{FAILING} " else finish,
                stop_reason=None,
            )

    async def encode(self, prompt, parameters, request_id):
        import torch

        self.calls.append((prompt, parameters, request_id, None))
        await asyncio.sleep(0)
        tokens = prompt["prompt_token_ids"]
        if parameters.task == "classify":
            data = torch.tensor([float(len(set(tokens)))])
        else:
            data = torch.zeros(parameters.dimensions or 4)
            data[: len(tokens)] = torch.tensor(tokens[:4]).float() + 1
        yield SimpleNamespace(outputs=SimpleNamespace(data=data), finished=True)


def _joined(parts):
    first, *rest = parts
    for part in rest:
        first.text += part.text
        first.token_ids += part.token_ids
        first.logprobs = None if first.logprobs is None else first.logprobs + part.logprobs
        first.finish_reason = part.finish_reason
    return first


TEMPLATE = (
    "{% for message in messages %}"
    "\n{% if message.role == 'judge' %}{{ raise_exception('no judges') }}{% endif %}"
    "{{ message.role }} {{ message.content }} {% endfor %}{{ ending }}"
)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """The parser of vLLM's command."""


def make_arg_parser(parser):
    single = "model chat-template tool-call-parser response-role default-chat-template-kwargs"
    for name in single.split():
        parser.add_argument(f"--{name}")
    for name in ("served-model-name", "lora-modules"):
        parser.add_argument(f"--{name}", nargs="+")
    return parser


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def build_app(arguments, tasks, described):
    """An application that answers with its arguments, and what it was asked for; it also loads adapters."""

    async def app(scope, receive, send):
        async def part(content, *, more):
            await send({"type": "http.response.body", "body": content, "more_body": more})

        body = json.loads((await receive())["body"])
        if "lora_name" in body:
            app.state.openai_serving_models.lora_requests[body["lora_name"]] = body  # type: ignore[attr-defined]
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        head = {"type": "http.response.start", "status": 207, "headers": [(b"content-type", kind)]}
        await send(head)
        if json.dumps(DEADLY) in json.dumps(body):
            await part(b"data: begun\n\n", more=True)
            app.state.engine_client.errored = True  # type: ignore[attr-defined]
            await part(b'data: {"error": {}}\n\n', more=True)
            await part(b"data: [DONE]\n\n", more=False)
            return
        if body.get("stream"):
            await part(b"data: " + json.dumps({"response": {"usage": USAGE}}).encode() + b"\n\n", more=True)
            await part(b"data: [DONE]\n\n", more=True)
            await part(b"", more=False)
            return
        document = {**vars(arguments), "path": scope["path"], "body": json.dumps(body), "usage": USAGE}
        await part(json.dumps(document, default=vars).encode(), more=False)

    app.state = SimpleNamespace()  # type: ignore[attr-defined]
    return app


async def init_app_state(engine, state, arguments, tasks):
    engine.applications += 1
    state.engine_client = engine
    state.openai_serving_models = SimpleNamespace(lora_requests={})


_MODULES = {
    "vllm": (AsyncEngineArgs, SamplingParams, PoolingParams),
    "vllm.entrypoints.launchers.api_server.app_state": (init_app_state,),
    "vllm.entrypoints.launchers.app": (build_app,),
    "vllm.entrypoints.launchers.cli_args": (make_arg_parser,),
    "vllm.exceptions": (VLLMClientError, GracefulHTTPError),
    "vllm.inputs": (tokens_input,),
    "vllm.lora.request": (LoRARequest,),
    "vllm.sampling_params": (RequestOutputKind, StructuredOutputsParams),
    "vllm.usage.usage_lib": (UsageContext,),
    "vllm.utils.argparse_utils": (FlexibleArgumentParser,),
    "vllm.v1.engine.async_llm": (AsyncLLM,),
    "vllm.v1.engine.exceptions": (EngineDeadError,),
    "vllm.v1.metrics": (),
    "vllm.v1.metrics.loggers": (PrometheusStatLogger,),
}


def pretend(patch, version="0.32.0"):
    """Lets ``import vllm`` find this."""
    packages = {name.rsplit(".", depth)[0] for name in _MODULES for depth in range(1, name.count("."))}
    for name in sorted(_MODULES.keys() | packages):
        module = ModuleType(name)
        for member in _MODULES.get(name, ()):
            setattr(module, member.__name__, member)
        patch.setitem(sys.modules, name, module)
    vars(sys.modules["vllm"])["__version__"] = version
