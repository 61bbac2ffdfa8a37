"""``vllm_handler`` beside vLLM's own application, over one engine: the same requests, the same answers.

In an environment of its own, see .ci/run; the engine needs half a minute to start.
"""

import asyncio
import json
import warnings
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from tempfile import gettempdir
from types import SimpleNamespace

import httpx
import openai
import pytest
from tests.differential.tiny_models import make_bert, make_llama
from tests.e2e.serving import Home, Server, serving, wait_until
from tests.handlers.language.vllm_bench import Bench
from tests.waiting import until

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.output import parse_metric
from modelserver.engine.wire.messages import Answer, Row
from modelserver.ext.openai.codec import split
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.chat import CHAT, COMPLETIONS
from modelserver_handlers.language.embedding import EMBEDDINGS, SCORE
from modelserver_handlers.language.requests import ChatRequest, CompletionRequest, read_request
from modelserver_handlers.language.sampling import VLLMFields, read_fields

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/run has a lane for it"),
    pytest.mark.timeout(600),
]


def of(role, content):
    return {"role": role, "content": content}


def json_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


USER = of("user", "What is a tensor?")
MESSAGES = [USER]
SETTINGS = {"max_model_len": 128, "dtype": "float32", "enforce_eager": True, "gpu_memory_utilization": 0.1}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}

CHATS = [
    {"max_tokens": 8},
    {"max_completion_tokens": 4, "seed": 7, "temperature": 0.9, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
    {},
    {"max_tokens": 6, "n": 2, "seed": 3, "temperature": 1.0},
    {"max_tokens": 6, "logprobs": True, "top_logprobs": 2},
    {"max_tokens": 6, "logprobs": True},
    {"max_tokens": 20, "stop": ["e", "zz"]},
    {"max_tokens": 8, "frequency_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {"7": -100, "9": 5}},
    {"max_tokens": 8, "repetition_penalty": 1.3, "min_tokens": 8, "bad_words": ["the"], "ignore_eos": True},
    {"max_tokens": 12, "response_format": json_of(SCHEMA)},
    {"max_tokens": 8, "stop_token_ids": [40, 41, 42], "allowed_token_ids": [39, 40, 50]},
    {"max_tokens": 4, "messages": [of("system", "Be short."), USER, of("assistant", "No."), USER]},
    # By the application of the handler.
    {"max_tokens": 4, "add_generation_prompt": False, "model": "m"},
    {"max_tokens": 4, "messages": [of("user", [{"type": "text", "text": text} for text in "ab"])]},
]
COMPLETED = [
    {"prompt": "A tensor is", "max_tokens": 8},
    {"prompt": "A tensor is"},
    {"prompt": ["A tensor", "A matrix is"], "max_tokens": 4, "n": 2, "seed": 5, "temperature": 0.7},
    {"prompt": [4, 8, 15, 16], "max_tokens": 5, "logprobs": 2},
    {"prompt": [[4, 8], [15]], "max_tokens": 5, "logprobs": 0},
    {"prompt": "A tensor is", "max_tokens": 4, "echo": True},
]
REFUSED = [
    (CHAT, {"messages": [of("judge", "a")]}),
    (CHAT, {"messages": [of("user", "word " * 300)]}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 500}),
    (CHAT, {"messages": MESSAGES, "temperature": -1}),
    (CHAT, {"messages": MESSAGES, "min_p": 3}),
    (CHAT, {"messages": MESSAGES, "model": "nobody"}),
    (CHAT, {"messages": MESSAGES, "response_format": json_of({"type": "strange"})}),
    (COMPLETIONS, {"prompt": [100_000]}),
]


class Both:
    """The handler, and vLLM's application over its engine."""

    def __init__(self, bench, client):
        self.bench = bench
        self._client = client

    async def reference(self, endpoint, fields):
        return await self._client.post(f"/{endpoint}", json={"model": "m", **fields})


@asynccontextmanager
async def started(folder):
    bench = Bench(str(folder), model_path=".", vllm_engine_config={**SETTINGS, "served_model_name": ["m"]})
    await bench.start()
    try:
        async with httpx.AsyncClient(
            transport=await application(bench, folder), base_url="http://v"
        ) as client:
            yield Both(bench, client)
    finally:
        bench.engine.shutdown()


async def application(bench, folder):
    """vLLM's own, over the engine of the handler."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags = ["--model", str(folder), "--served-model-name", "m"]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    tasks = await bench.engine.get_supported_tasks()
    with warnings.catch_warnings(action="ignore"):
        app = build_app(arguments, tasks, bench.engine.model_config)
        await init_app_state(bench.engine, app.state, arguments, tasks)
    return httpx.ASGITransport(app=app)


def bare(document):
    """Without ids, times, and what only vLLM's application says of itself; null is as good as nothing."""
    if isinstance(document, list):
        return [bare(each) for each in document]
    if not isinstance(document, dict):
        return document
    left_out = ("id", "created", "system_fingerprint")
    items = {name: bare(value) for name, value in document.items() if name not in left_out}
    return {name: value for name, value in items.items() if value is not None}


def events_of(text):
    """The documents of a stream, by choice; a busy engine joins tokens, so texts are joined here, too."""
    *lines, done, nothing = text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    events = [bare(json.loads(line.removeprefix("data: "))) for line in lines]
    merged = []
    for event in sorted(events, key=lambda each: each["choices"][0]["index"] if each["choices"] else 1 << 20):
        last = merged[-1] if merged else None
        if last is not None and _joins(last, event):
            _join(last, event)
        else:
            merged.append(event)
    return merged


def _joins(last, event):
    choices = [*last["choices"], *event["choices"]]
    is_of_one = len(choices) == 2 and choices[0]["index"] == choices[1]["index"]
    return is_of_one and "role" not in choices[0].get("delta", ())


def _join(last, event):
    (mine,), (other,) = last["choices"], event["choices"]
    if "text" in mine:
        mine["text"] += other.pop("text")
    else:
        mine["delta"]["content"] += other.pop("delta")["content"]
    for name, values in other.pop("logprobs", {}).items():
        mine["logprobs"][name] += values
    mine.update(other)


def joined(fields, rows):
    """The document of a request for scores whose pairs have these answers."""
    parsed = split(SCORE, json.dumps(fields).encode())
    request = Request("r", [Row("r", 0)] * len(rows), parsed.bodies, 0.0)
    request.deliver(0, [(Answer(0), json.dumps(row).encode()) for row in rows])
    return json.loads(parsed.encode(SimpleNamespace(name="m"), request)[0])


@pytest.mark.asyncio
async def test_answers_are_those_of_vllms_application(tmp_path, capsys):
    """Documents, events and statuses of refusals, but for ids and times; who leaves is aborted. The engine
    takes as much at a time as behind vLLM's own server, and reports what it runs, to the end.
    """
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    async with started(make_llama(tmp_path)) as both:
        bench = both.bench
        arguments = AsyncEngineArgs(str(tmp_path), **SETTINGS)
        served = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        assert scheduling(bench.engine.vllm_config) == scheduling(served)
        chats = [(CHAT, {"temperature": 0, "messages": MESSAGES, **fields}) for fields in CHATS]
        for endpoint, fields in chats + [(COMPLETIONS, {"temperature": 0, **each}) for each in COMPLETED]:
            reference = await both.reference(endpoint, fields)
            assert bare(await bench.whole(endpoint, **fields)) == bare(reference.json()), fields
            streamed = {**fields, "stream": True, "stream_options": {"include_usage": True}}
            reference = await both.reference(endpoint, streamed)
            assert events_of(await bench.send(endpoint, **streamed)) == events_of(reference.text), fields
        for endpoint, fields in REFUSED:
            status = (await both.reference(endpoint, fields)).status_code
            with pytest.raises(PredictionException) as refusal:
                await bench.send(endpoint, **fields)
            assert (refusal.value.error_code, status) in [(400, 400), (404, 404)], fields
        # 500 of vLLM's application.
        with pytest.raises(PredictionException, match="cannot use the schema"):
            await bench.send(messages=MESSAGES, structured_outputs={"json": {"$ref": "#"}})
        call = asyncio.create_task(bench.send(CHAT, stream=True, messages=MESSAGES, ignore_eos=True))
        await until(bench.engine.get_num_unfinished_requests)
        call.cancel()
        await asyncio.wait([call])
        assert (call.cancelled(), bench.engine.get_num_unfinished_requests()) == (True, 0)
        printed = []

        def values(name):
            printed.extend(map(parse_metric, capsys.readouterr().out.splitlines()))
            return [metric.value for metric in printed if metric is not None and metric.name == name]

        await until(lambda: values("EngineRunningRequests")[-1] == 0)
        assert max(values("EngineRunningRequests")) >= 1
        assert max(values("EngineCacheUsage")) > 0


def scheduling(config):
    scheduler = config.scheduler_config
    return scheduler.max_num_seqs, scheduler.max_num_batched_tokens


def test_known_fields_are_vllms_too():
    """Those of the short way have the names of vLLM's; all others go to its application."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest as Completion

    known = set(VLLMFields.__struct_fields__)
    assert (
        known - {"chat_template_kwargs"}
        <= ChatCompletionRequest.model_fields.keys() & Completion.model_fields.keys()
    )
    for kind, fields, other in (
        (ChatRequest, {"messages": MESSAGES}, ChatCompletionRequest),
        (CompletionRequest, {"prompt": "a"}, Completion),
    ):
        own = {*kind.__struct_fields__, *known}
        for name in other.model_fields.keys() - own - {"user", "parallel_tool_calls"}:
            request = read_request(kind, {**fields, name: 1})
            assert read_fields(request) is None, name


@pytest.mark.asyncio
@pytest.mark.parametrize("scores", [False, True])
async def test_pooling_models_are_those_of_vllms_application(scores, tmp_path):
    """Vectors, and scores of models that read both texts or make vectors of them."""
    texts = ["a tensor", "the gradient of a tensor"]
    async with started(make_bert(tmp_path, scores=scores)) as both:
        for left in (texts[0], [texts[0]] * 2):
            fields = {"text_1": left, "text_2": texts}
            reference = (await both.reference(SCORE, fields)).json()
            rows = await both.bench.rows(SCORE, *([texts[0], each] for each in texts))
            document = joined(fields, rows)
            assert [each["score"] for each in document["data"]] == pytest.approx(
                [each["score"] for each in reference["data"]], abs=1e-5
            )
            assert document["usage"]["prompt_tokens"] == reference["usage"]["prompt_tokens"]
        if not scores:
            reference = (await both.reference(EMBEDDINGS, {"input": texts})).json()
            rows = await both.bench.rows(EMBEDDINGS, *texts)
            for row, each in zip(rows, reference["data"], strict=True):
                assert row["embedding"] == pytest.approx(each["embedding"], abs=1e-5)


def test_chats_are_streamed_over_http(tmp_path):
    """By the whole server, with OpenAI's client: who leaves ends the generation, which the metrics show."""
    config, store = tmp_path / "config.yaml", tmp_path / "store"
    # An answer of 500 tokens may end before its client has left.
    length = {"max_num_seqs": 8, "max_model_len": 8192}
    engine = {**SETTINGS, **length, "model": str(make_llama(tmp_path, length=8192))}
    config.write_text(json.dumps({"startupTimeout": 300, "handler": {"vllm_engine_config": engine}}))
    store.mkdir()
    build_archive(ArchiveConfig("chat", "vllm_handler", "1.0", config_file=str(config), export_path=store))
    # The engine's sockets have short paths.
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_RPC_BASE_PATH": gettempdir()}
    server = Server(Home(tmp_path / "home", variables), store)
    client = openai.OpenAI(base_url=f"{server.inference.base_url}/v1", api_key="none", max_retries=0)
    options = {"stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
    create = client.chat.completions.create
    chat = partial(create, model="chat", messages=MESSAGES, stream=True, **options)
    with serving(server), client:
        server.register("chat.mar", initial_workers=1, synchronous=False)
        wait_until(lambda: server.describe("chat")["workers"][0]["status"] == "READY", "it is loaded", 240)
        chunks = list(chat(max_tokens=24))

        assert chunks[-1].usage.completion_tokens == 24
        assert chunks[-2].choices[0].finish_reason == "length"
        running = partial(server.metric, "EngineRunningRequests", ModelName="chat")
        with chat() as stream:
            next(iter(stream))
            wait_until(lambda: running() == 1, "the engine computes it")
        wait_until(lambda: running() == 0, "it was aborted", 30)

        assert server.metric("modelserver_streams_aborted_total", model_name="chat") == 1
        assert server.metric("modelserver_completion_tokens_total", model_name="chat") == 24
