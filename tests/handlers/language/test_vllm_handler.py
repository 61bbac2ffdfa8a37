"""``vllm_handler`` over a pretended engine: prompts, adapters, refusals, vectors and scores."""

import asyncio
import base64
import subprocess
import sys

import numpy
import pytest
from tests.handlers.language.pretended_vllm import ENDLESS, IMPOSSIBLE
from tests.handlers.language.vllm_bench import Bench

from modelserver_handlers.context import Context
from modelserver_handlers.errors import PredictionException, WorkerUnusable
from modelserver_handlers.language import vllm_handler
from modelserver_handlers.language.chat import CHAT, COMPLETIONS
from modelserver_handlers.language.embedding import EMBEDDINGS, RERANK, SCORE

LONG = "word " * 10_000
pytestmark = pytest.mark.usefixtures("pretended_vllm")


@pytest.mark.parametrize("as_file", [True, False])
async def test_template_may_be_configured(as_file, tmp_path):
    text = "{{ messages[0].content }} {{ ending }}"
    (tmp_path / "chat.jinja").write_text(text)
    bench = await Bench(str(tmp_path), chat_template="chat.jinja" if as_file else text).start()
    answer = await bench.whole(chat_template_kwargs={"ending": "end", "tokenize": False})

    assert answer["choices"][0]["message"]["content"] == "one two three end "


async def test_template_has_defaults():
    settings = {"default_chat_template_kwargs": {"ending": "end"}}
    bench = await Bench(vllm_engine_config=settings).start()
    answers = [await bench.whole(), await bench.whole(chat_template_kwargs={"ending": "other"})]

    assert [answer["choices"][0]["message"]["content"].split()[-1] for answer in answers] == ["end", "other"]


def test_importing_the_handler_does_not_import_vllm():
    code = (
        "import sys, modelserver_handlers.language.vllm_handler; print({'torch', 'vllm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout == "set()\n"


async def test_model_names_the_adapter():
    bench = await Bench(adapters={"poet": "/p"}, vllm_engine_config={"served_model_name": "known"}).start()
    for name in ("poet", "m/poet", "m:1.0/poet", "m", "m:1.0", "", "known", "some/model"):
        await bench.whole(model=name)
    listed = await bench.call("v1/models", {})

    assert [call[3] is not None for call in bench.engine.calls] == [*[True] * 3, *[False] * 5]
    assert [model["id"] for model in listed[0]["data"]] == ["m", "poet"]
    for name in ("nobody", "m/nobody", "other/poet"):
        with pytest.raises(PredictionException, match="does not exist") as refusal:
            await bench.whole(model=name)
        assert refusal.value.error_code == 404


# Refusals and failures


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (CHAT, {"messages": [{"role": "judge", "content": "a"}]}, "The chat template, line 2: no judges"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema has no schema"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": IMPOSSIBLE}}},
            "Grammar error: Unsupported type nothing",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
            "cannot use the schema",
        ),
        (CHAT, {"structured_outputs": {"json": ENDLESS}, "stream": True}, "cannot use the schema"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a " * 20}]},
            "The prompt has 21 tokens, the model's length is 20",
        ),
        (CHAT, {"max_tokens": 17}, "The prompt has 4 tokens, 17 are to follow, the model's length is 20"),
        (COMPLETIONS, {"prompt": []}, "there is no token in the input"),
        (COMPLETIONS, {"prompt": ""}, "there is no token in the input"),
        (CHAT, {"min_p": 3}, r"min_p must be in \[0, 1\]"),
        (CHAT, {"top_k": "many"}, r"top_k"),
        (CHAT, {"top_k": 1 << 63}, r"top_k"),
        (CHAT, {"no text: \udcff": 1}, "surrogate"),
        (CHAT, {"structured_outputs": {"strange": 1}}, "strange"),
    ],
)
async def test_request_that_cannot_be_answered_is_refused(endpoint, fields, message):
    bench = await Bench().start()
    with pytest.raises(PredictionException, match=message) as refusal:
        await bench.send(endpoint, **fields)

    assert refusal.value.error_code == 400


@pytest.mark.parametrize(
    ("runner", "send", "tokens"),
    [
        ("generate", lambda bench: bench.send(messages=[{"role": "user", "content": LONG}]), 10_001),
        ("generate", lambda bench: bench.send(messages=[{"role": "user", "content": LONG * 20}]), 200_001),
        ("generate", lambda bench: bench.send(messages=[{"role": "user", "content": "a"}] * 20_000), 40_000),
        ("embed", lambda bench: bench.rows(EMBEDDINGS, LONG), 10_000),
        ("classify", lambda bench: bench.rows(SCORE, ["a", LONG]), 10_001),
    ],
    ids=["chat", "one MB", "many messages", "embeddings", "scores"],
)
async def test_long_text_is_turned_into_tokens_in_a_thread(runner, send, tokens, monkeypatch):
    calls = []

    async def to_thread(call, *arguments):
        calls.append(call)
        return call(*arguments)

    bench = await Bench(vllm_engine_config={"runner": runner}).start()
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    with pytest.raises(PredictionException, match=f"The prompt has {tokens} tokens"):
        await send(bench)
    assert len(calls) == 1


async def test_model_without_a_template_completes_only():
    bench = await Bench(vllm_engine_config={"model": "plain"}).start()
    completed = await bench.whole(COMPLETIONS, prompt="a b")

    assert completed["choices"][0]["text"] == "a b "
    with pytest.raises(PredictionException, match="no chat template: it serves /v1/completions"):
        await bench.send()


async def test_unknown_path_is_not_there():
    with pytest.raises(PredictionException, match="Unknown API endpoint: other") as refusal:
        await (await Bench().start()).send("other")

    assert refusal.value.error_code == 404


async def test_worker_leaves_with_its_engine():
    """Before anything is answered: the server sends the requests to another one."""
    with pytest.raises(WorkerUnusable, match="vLLM's engine has ended: EngineCore encountered an issue"):
        await (await Bench().start()).send(messages=[{"role": "die", "content": ""}], stream=True)


async def test_worker_leaves_with_an_engine_that_ends_while_it_has_nothing_to_do(monkeypatch):
    reasons: asyncio.Queue[WorkerUnusable] = asyncio.Queue()
    monkeypatch.setattr(vllm_handler, "_LOOK", 0)
    monkeypatch.setattr(Context, "_ms_leave", reasons.put_nowait)
    bench, closed = await Bench().start(), await Bench().start()
    await closed.handler._ms_close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (reasons.empty(), closed.engine.is_shut_down) == (True, True)
    bench.engine.errored = True
    reason = await asyncio.wait_for(reasons.get(), 5)

    assert str(reason) == "vLLM's engine has ended while it had nothing to do"


# Pooling models


async def test_embeddings_are_rows():
    bench = await Bench(vllm_engine_config={"runner": "embed"}).start()
    plain = await bench.rows(EMBEDDINGS, "a b", [1])
    packed = await bench.rows(EMBEDDINGS, "a b", encoding_format="base64", dimensions=3)

    assert bench.handler._ms_endpoints == {EMBEDDINGS: True, RERANK: True, SCORE: True, "*": False}
    assert plain == [
        {"embedding": [1.0, 2.0, 0.0, 0.0], "tokens": 2},
        {"embedding": [2.0, 0, 0, 0], "tokens": 1},
    ]
    assert numpy.frombuffer(base64.b64decode(packed[0]["embedding"]), "<f4").tolist() == [1.0, 2.0, 0.0]
    for row, message in ((5, "a text or token ids are needed"), ("w " * 21, "The prompt has 21 tokens")):
        with pytest.raises(PredictionException, match=message):
            await bench.rows(EMBEDDINGS, row)


async def test_scores_are_of_both_kinds_of_models():
    embedding = await Bench(vllm_engine_config={"runner": "embed"}).start()
    angles = await embedding.rows(SCORE, ["a", "a"], ["a", "a b"])
    bench = await Bench(vllm_engine_config={"runner": "classify"}).start()
    scores = await bench.rows(RERANK, ["a b", "c"])

    assert [answer["score"] for answer in angles] == [pytest.approx(1.0), pytest.approx(1 / 5**0.5)]
    assert [(answer["query_tokens"], answer["tokens"]) for answer in angles] == [(1, 1), (1, 2)]
    assert len(embedding.engine.calls) == 2, "the vector of a text is made once"
    assert scores == [{"score": 3.0, "tokens": 3}]
    assert bench.parameters().extra_kwargs == {"compressed_token_type_ids": 2}
    with pytest.raises(PredictionException, match="a pair of two texts"):
        await bench.rows(SCORE, "a")
