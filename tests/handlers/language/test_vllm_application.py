"""Requests that only vLLM's own application serves reach it, over the engine of the handler."""

import json

import pytest
from tests.handlers.language.vllm_bench import USER, Bench

from modelserver_handlers.errors import PredictionException, WorkerUnusable
from modelserver_handlers.language.chat import CHAT, COMPLETIONS

pytestmark = pytest.mark.usefixtures("pretended_vllm")
PICTURE = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}
CALL = {"role": "assistant", "tool_calls": [{"id": "1"}]}


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"tools": [{"type": "function"}]}),
        (CHAT, {"messages": [PICTURE]}),
        (CHAT, {"messages": [CALL, {"role": "tool", "content": "4"}]}),
        (CHAT, {"messages": USER, "response_format": {"type": "structural_tag"}}),
        (CHAT, {"messages": USER, "reasoning_effort": "low"}),
        (CHAT, {"messages": USER, "add_generation_prompt": False}),
        (CHAT, {"messages": USER, "include_reasoning": False}),
        (CHAT, {"messages": USER, "unheard_of": 0}),
        (COMPLETIONS, {"prompt": "a", "echo": True}),
        (COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_object"}}),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 1}),
        (COMPLETIONS, {"prompt": "a", "cache_salt": "s"}),
    ],
)
async def test_body_decides_who_answers(endpoint, fields):
    bench = await Bench().start()
    answers = [await bench.whole(endpoint, **fields) for _ in range(2)]
    processor = bench.state.touched(0)

    assert (answers[0]["path"], json.loads(answers[0]["body"])["model"]) == (f"/{endpoint}", "m")
    assert fields.items() <= json.loads(answers[1]["body"]).items()
    assert (processor.get_response_status_code(), bench.engine.applications) == (207, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "reasoning_effort": None, "echo": None},
        {"user": "u", "store": True, "metadata": {}, "tool_choice": "none"},
        {"tools": []},
    ],
)
async def test_fields_that_change_nothing_need_no_application(fields):
    """Null is as good as nothing."""
    bench = await Bench().start()
    answer = await bench.whole(**fields)

    assert answer["choices"][0]["message"]["content"] == "user one two three "
    assert bench.engine.applications == 0


async def test_application_separates_thoughts_from_answers():
    """All chats of a model that reasons are its own; its parser is that of the engine."""
    bench = await Bench(vllm_engine_config={"reasoning_parser": "deepseek_r1"}).start()
    arguments = await bench.whole()
    completed = await bench.whole(COMPLETIONS, prompt="a b")

    assert arguments["structured_outputs_config"] == {"reasoning_parser": "deepseek_r1"}
    assert completed["choices"][0]["text"] == "a b "


@pytest.mark.parametrize("stream", [False, True])
async def test_its_usage_is_that_of_the_response(stream):
    """For metrics and spans, as of other requests."""
    bench = await Bench().start()
    await bench.send(tools=[{}], stream=stream)
    parameters = bench.state.touched(0)._ms_parameters  # type: ignore[union-attr]

    assert parameters == {"prompt_tokens": 3, "completion_tokens": 2}


async def test_worker_leaves_with_the_engine_of_the_application():
    """Which would end the stream as if it were whole, and answer all others with 500."""
    bench = await Bench().start()
    deadly = {"tools": [{}], "stream": True, "messages": [{"role": "user", "content": "die"}]}
    for fields, sent in ((deadly, [b"data: begun\n\n"]), ({"tools": [{}]}, [])):
        with pytest.raises(WorkerUnusable, match="vLLM's engine has ended: EngineCore encountered an issue"):
            await bench.send(**fields)
        assert bench.state.stream.parts == sent  # type: ignore[union-attr]


async def test_adapters_that_were_loaded_at_run_time():
    """The application knows them by their own name, alone or behind the model."""
    bench = await Bench(adapters={"poet": "/p"}).start()
    with pytest.raises(PredictionException, match="`late` does not exist"):
        await bench.whole(model="late")
    await bench.whole("v1/load_lora_adapter", lora_name="late", lora_path="/l")
    names = [
        json.loads((await bench.whole(model=name, **fields))["body"])["model"]
        for name, fields in (("late", {}), ("m/late", {}), ("m:1.0/late", {}), ("m:1.0", {"tools": [{}]}))
    ]
    names.append(json.loads((await bench.whole(model="m:1.0/poet", tools=[{}]))["body"])["model"])

    assert names == ["late", "late", "late", "m", "m/poet"]
    with pytest.raises(PredictionException, match="`nobody` does not exist"):
        await bench.whole(model="m/nobody")


async def test_rows_that_the_short_way_does_not_know_come_whole():
    """Such as those of adapters, and with other fields."""
    bench = await Bench(vllm_engine_config={"runner": "embed"}).start()
    scope = {"path": "/v1/embeddings", "root_path": "", "headers": []}
    body = b'{"model": "m/poet", "input": "a", "truncate_prompt_tokens": 1}'
    (answer,) = await bench.call("v1/embeddings", {"body": body}, parameters=scope)

    assert json.loads(answer)["path"] == "/v1/embeddings"


async def test_other_paths_are_its_own():
    bench = await Bench().start()

    async def send(path):
        scope = {
            "path": f"/predictions/m/{path}",
            "root_path": "/predictions/m",
            "headers": [],
            "method": "GET",
        }
        return await bench.call(path, {"body": b"{}"}, parameters=scope)

    assert json.loads((await send("v1/responses"))[0])["path"] == "/predictions/m/v1/responses"
    for path in ("scale_elastic_ep", "metrics", "v3/x"):
        with pytest.raises(PredictionException, match=f"Unknown API endpoint: {path}"):
            await send(path)


async def test_it_has_the_settings_of_the_model():
    config = {"tool_call_parser": "hermes", "served_model_name": ["known"]}
    bench = await Bench(vllm_engine_config=config, adapters={"poet": "/p"}, chat_template="{{ 1 }}").start()
    arguments = await bench.whole(tools=[{}])

    assert arguments["served_model_name"] == ["m", "some/model", "known"]
    assert (arguments["lora_modules"], arguments["tool_call_parser"]) == (["poet=/p", "m/poet=/p"], "hermes")
    assert (arguments["model"], arguments["chat_template"]) == ("some/model", "{{ 1 }}")
