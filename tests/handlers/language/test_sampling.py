"""From requests to the parameters of vLLM's engine."""

import pytest
from tests.handlers.language.pretended_vllm import LENGTH
from tests.handlers.language.vllm_bench import Bench

from modelserver_handlers.language.chat import CHAT, COMPLETIONS

pytestmark = pytest.mark.usefixtures("pretended_vllm")


async def test_requests_become_sampling_parameters():
    bench = await Bench().start()
    await bench.whole(
        temperature=0, top_p=0.5, stop="x", seed=3, logit_bias={"1": 2.0}, min_p=0.1, bad_words=["no"]
    )
    full = bench.parameters()
    await bench.whole(top_k=2, response_format={"type": "json_object"})
    structured = bench.parameters()
    schema = {"type": "object"}
    await bench.whole(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})

    assert (full.temperature, full.top_p, full.stop, full.seed) == (0, 0.5, ["x"], 3)
    assert (full.logit_bias, full.min_p, full.bad_words, full.top_k) == ({"1": 2.0}, 0.1, ["no"], 7)
    assert (structured.top_k, structured.structured_outputs.json_object) == (2, True)
    assert bench.parameters().structured_outputs.json == schema


@pytest.mark.parametrize(
    ("endpoint", "fields", "limit"),
    [
        (CHAT, {}, LENGTH - 4),
        (CHAT, {"max_tokens": 3}, 3),
        (CHAT, {"max_completion_tokens": 2, "max_tokens": 3}, 2),
        (COMPLETIONS, {"prompt": "a"}, 16),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 5}, 5),
    ],
)
async def test_a_chat_may_use_the_rest_of_the_models_length(endpoint, fields, limit):
    bench = await Bench().start()
    await bench.whole(endpoint, **fields)

    assert bench.parameters().max_tokens == limit
