"""Requests that only vLLM's own application serves reach it, over the engine of the handler."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.handlers.language.vllm_bench import USER, Bench

from modelserver_handlers.context import BatchState
from modelserver_handlers.errors import PredictionException
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
        (COMPLETIONS, {"prompt": "a", "echo": True}),
    ],
)
async def test_body_decides_who_answers(endpoint: str, fields: Any) -> None:
    bench = await Bench().start()
    answers = [await bench.whole(endpoint, **fields) for _ in range(2)]
    processor = bench.state.touched(0)

    assert (answers[0]["path"], json.loads(answers[0]["body"])["model"]) == (f"/{endpoint}", "m")
    assert fields.items() <= json.loads(answers[1]["body"]).items()
    assert (processor.get_response_status_code(), bench.engine.applications) == (207, 1)  # type: ignore[union-attr]


async def test_other_paths_are_its_own() -> None:
    bench = await Bench().start()

    async def send(path: str) -> Any:
        scope = {
            "path": f"/predictions/m/{path}",
            "root_path": "/predictions/m",
            "headers": [],
            "method": "GET",
        }
        state = BatchState(["r"], properties=[{"url_path": path}], parameters=[scope])
        return await bench.handler.handle([{"body": b"{}"}], bench.context._ms_of_request(state))

    assert json.loads((await send("v1/responses"))[0])["path"] == "/predictions/m/v1/responses"
    for path in ("scale_elastic_ep", "metrics", "v3/x"):
        with pytest.raises(PredictionException, match=f"Unknown API endpoint: {path}"):
            await send(path)


async def test_it_has_the_settings_of_the_model() -> None:
    config = {"tool_call_parser": "hermes", "served_model_name": ["known"]}
    bench = await Bench(vllm_engine_config=config, adapters={"poet": "/p"}, chat_template="{{ 1 }}").start()
    arguments = await bench.whole(tools=[{}])

    assert arguments["served_model_name"] == ["m", "some/model", "known"]
    assert (arguments["lora_modules"], arguments["tool_call_parser"]) == (["poet=/p", "m/poet=/p"], "hermes")
    assert (arguments["model"], arguments["chat_template"]) == ("some/model", "{{ 1 }}")
