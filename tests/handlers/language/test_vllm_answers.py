"""From the engine's outputs to documents and events."""

import asyncio

import pytest
from tests.handlers.language.vllm_bench import Bench

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.chat import COMPLETIONS

pytestmark = pytest.mark.usefixtures("pretended_vllm")


async def test_chat_is_answered_whole_and_as_a_stream():
    bench = await Bench().start()
    whole = await bench.whole()
    parameters = bench.state.touched(0)._ms_parameters  # type: ignore[union-attr]
    events = await bench.events(stream_options={"include_usage": True})

    assert whole["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "user one two three "},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert whole["usage"] == events[-1]["usage"]
    assert parameters == {"prompt_tokens": 4, "completion_tokens": 4}
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        *({"content": f"{word} "} for word in ("user", "one", "two", "three")),
    ]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * 4 + ["stop"]


async def test_choices_of_several_prompts_are_numbered():
    bench = await Bench().start()
    fields = {"prompt": ["a b", [0]], "n": 2, "max_tokens": 1}
    whole = await bench.whole(COMPLETIONS, **fields)
    events = await bench.events(COMPLETIONS, **fields)

    texts = [(0, "a "), (1, "a "), (2, "a "), (3, "a ")]
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == texts
    assert (
        sorted((choice["index"], choice["text"]) for event in events for choice in event["choices"]) == texts
    )
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["length", "length", "stop", "stop"]


async def test_parts_of_a_message_become_one_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = await (await Bench().start()).whole(messages=[{"role": "developer", "content": parts}])

    assert answer["choices"][0]["message"]["content"] == "system one two "


async def test_logprobs_have_the_forms_of_both_endpoints():
    bench = await Bench().start()
    chat = await bench.whole(logprobs=True, top_logprobs=1, max_tokens=1)
    whole = await bench.whole(COMPLETIONS, prompt="a bc", logprobs=1)
    events = await bench.events(COMPLETIONS, prompt="a bc", logprobs=1)

    entry = {"token": "user ", "logprob": 0.0, "bytes": list(b"user ")}
    assert chat["choices"][0]["logprobs"] == {"content": [{**entry, "top_logprobs": [entry]}]}
    assert whole["choices"][0]["logprobs"] == {
        "text_offset": [0, 2],
        "token_logprobs": [0.0, 0.0],
        "tokens": ["a ", "bc "],
        "top_logprobs": [{"a ": 0.0, "bc ": -1.0}, {"bc ": 0.0, "a ": -1.0}],
    }
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in events] == [[0], [2]]


@pytest.mark.parametrize("stream", [True, False])
async def test_call_that_is_cancelled_aborts_the_engines_request(stream):
    bench = await Bench(vllm_engine_config={"max_model_len": 10_000}).start()
    prompts = ["a " * 2000] * 2
    call = asyncio.create_task(bench.send(COMPLETIONS, prompt=prompts, stream=stream, max_tokens=2000))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(bench.engine.calls) == 2
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)

    assert sorted(bench.engine.aborted) == ["r-0", "r-1"]


async def test_engine_gets_no_request_for_more_while_the_client_reads_nothing():
    """What it has generated is sent when the client reads on."""
    bench = await Bench(vllm_engine_config={"max_model_len": 100}).start()
    gate = bench.gate = asyncio.Event()
    call = asyncio.create_task(bench.send(COMPLETIONS, prompt="a " * 50, stream=True, max_tokens=50))
    for _ in range(100):
        await asyncio.sleep(0)
    assert bench.engine.running == {"r-0"}
    gate.set()

    assert (await call).count('"text":"a "') == 50
    assert bench.engine.aborted == []


async def test_failure_of_one_request_concerns_it_alone():
    bench = await Bench().start()
    with pytest.raises(PredictionException, match="could not generate") as failure:
        await bench.send(messages=[{"role": "fail", "content": ""}])

    assert failure.value.error_code == 500
