import json
import os
import re
import shutil
import subprocess
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import psutil
import pytest
from tests.e2e.blocks import BLOCKS
from tests.e2e.raw import connect, everything, post
from tests.e2e.serving import ROOT, Home, Server, serving, wait_until

CLIENTS = []


@pytest.fixture(autouse=True)
def clients_are_closed():
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def client_of(server, path="/v1", key="none"):
    client = openai.OpenAI(base_url=f"{server.inference.base_url}{path}", api_key=key, max_retries=0)
    CLIENTS.append(client)
    return client


def say(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def chatting(shared_server):
    for name in ("chatty", "letters", "overlap"):
        shared_server.registered(f"{name}.mar", batch_size=8, max_batch_delay=50)
    return shared_server


PATHS = ["/v1", "/openai/v1", "/predictions/chatty/v1", "/predictions/chatty/1.0/v1"]


@pytest.mark.parametrize("path", PATHS)
def test_chat_is_answered_whole_and_in_parts(chatting, path):
    """At OpenAI's, KServe's and TorchServe's paths."""
    client = client_of(chatting, path)
    whole = client.chat.completions.create(model="chatty", messages=say("count 3"))
    stream = client.chat.completions.create(
        model="chatty", messages=say("count 3"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    completed = client.completions.create(model="chatty", prompt=["one", "two"])

    assert [choice.text for choice in completed.choices] == ["one!", "two!"]
    assert whole.choices[0].message.content == text == "0 1 2 "
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "stop"
    assert whole.usage == chunks[-1].usage


def test_chat_of_the_page_answers(chatting, model_store, monkeypatch, capsys):
    page = "docs/language-models.md: A chat in a few lines: python"
    (model_store / "chat.py").write_text(BLOCKS[f"{page} 1"].text, "utf-8")
    chatting.registered("chat.py", model_name="parrot")
    client = client_of(chatting)
    monkeypatch.setattr(openai, "OpenAI", lambda **_: client)
    exec(compile(BLOCKS[f"{page} 2"].text, page, "exec"), {})

    assert capsys.readouterr().out == "one two three \none two three "


def test_commands_of_the_example_are_answered(chatting, model_store, capsys):
    """Those of examples/chat: with curl, as the events arrive, and with OpenAI's client."""
    shutil.copy(ROOT / "examples/chat/chat.py", model_store / "rephrase.py")
    chatting.registered("rephrase.py", model_name="chat")
    page = (ROOT / "examples/chat/README.md").read_text("utf-8")
    page = re.sub(r"(localhost|127\.0\.0\.1):8080", f"127.0.0.1:{chatting.port}", page)
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?m)(?:^    .*\n)+", page)]
    (curl,) = (block for block in blocks if block.startswith("curl -N"))
    (python,) = (block for block in blocks if block.startswith("from openai"))
    exec(python, {})

    assert capsys.readouterr().out == "Why do you need a gpu?\n"
    events = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True).stdout
    assert '"content":" gpu?"' in events
    assert events.endswith("data: [DONE]\n\n")


@pytest.mark.slow  # imports a large library
def test_langchain_is_answered(chatting):
    """A chat whole and in parts, a text, and vectors."""
    langchain = pytest.importorskip("langchain_openai")
    settings = {"base_url": f"{chatting.inference.base_url}/v1", "api_key": "none"}
    chat = langchain.ChatOpenAI(model="chatty", **settings)
    vectors = langchain.OpenAIEmbeddings(model="letters", check_embedding_ctx_length=False, **settings)
    whole = chat.invoke("count 3")

    assert whole.content == "".join(part.content for part in chat.stream("count 3")) == "0 1 2 "
    assert whole.usage_metadata["output_tokens"] == 3
    assert langchain.OpenAI(model="chatty", **settings).invoke("one") == "one!"
    assert vectors.embed_documents(["ab", "bb"]) == [[1, 1], [0, 2]]


def test_stream_is_one_of_events(chatting):
    """As browsers read it. A failure ends it without the mark of the end; the same request whole is a 500."""
    body = {"model": "chatty", "messages": say("count 2"), "stream": True}
    answer = chatting.inference.post("/v1/chat/completions", json=body)

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("data: [DONE]\n\n")

    body = {"model": "chatty", "messages": say("fail")}
    events = events_of(chatting.inference.post("/v1/chat/completions", json={**body, "stream": True}))

    assert "no more words" in events[-1]["error"]["message"]
    assert "[DONE]" not in events
    with pytest.raises(openai.InternalServerError):
        client_of(chatting).chat.completions.create(**body)


def test_lists_and_versions_are_for_both_kinds_of_clients(chatting):
    """A version is named after a colon."""
    listed = client_of(chatting).models.list().data

    assert {"chatty", "letters", "overlap"} <= {model.id for model in listed}
    assert client_of(chatting).models.retrieve("chatty").id == "chatty"
    assert "chatty" in chatting.inference.get("/v1/models").json()["models"]

    for path, names in (
        *((path, ["chatty"]) for path in PATHS[2:]),
        ("/predictions/letters/v1", ["letters"]),
    ):
        assert [model.id for model in client_of(chatting, path).models.list()] == names

    client = client_of(chatting)
    answer = client.chat.completions.create(model="chatty:1.0", messages=say("count 1"))

    assert answer.choices[0].message.content == "0 "
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="chatty:9", messages=say("count 1"))
    assert refusal.value.code == "model_not_found"


def test_embeddings_of_several_clients_share_a_batch(chatting):
    """The client asks for base64 unless it is told otherwise."""
    client = client_of(chatting)
    batched = [
        chatting.inference.build_request("POST", "/v1/embeddings", json={"model": "letters", "input": "a"})
        for _ in range(8)
    ]
    with ThreadPoolExecutor(8) as executor:
        sizes = [a.headers["x-batch-size"] for a in executor.map(chatting.inference.send, batched)]
    plain = client.embeddings.create(model="letters", input=["ab", "bb"], encoding_format="float")
    encoded = client.embeddings.create(model="letters", input=["ab", "bb"])

    assert [each.embedding for each in plain.data] == [each.embedding for each in encoded.data]
    assert [each.embedding for each in plain.data] == [[1.0, 1.0], [0.0, 2.0]]
    assert max(map(int, sizes)) > 1


def test_answer_that_json_cannot_hold_fails_its_request_alone(chatting):
    """The worker goes on."""

    def pids():
        return [worker["pid"] for worker in chatting.describe("overlap")["workers"]]

    before = pids()

    def score(*texts):
        body = {"model": "overlap", "text_1": "x", "text_2": texts}
        return chatting.inference.post("/v1/score", json=body)

    failed = {text: score("x", text) for text in ("nothing", "half")}

    assert {text: answer.status_code for text, answer in failed.items()} == {"nothing": 500, "half": 500}
    assert "result is nan, which is no finite number" in failed["nothing"].json()["error"]["message"]
    assert "Expected `int`, got `float`" in failed["half"].json()["error"]["message"]
    assert score("x").status_code == 200
    assert pids() == before


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "none"}, openai.NotFoundError),
        ({"model": "letters"}, openai.BadRequestError),
        ({"model": "chatty", "messages": []}, openai.BadRequestError),
        ({"model": "chatty", "messages": say("x" * 8_000_000)}, openai.APIStatusError),
    ],
)
def test_bad_request_has_an_error_that_the_client_reads(chatting, fields, error):
    with pytest.raises(error) as refusal:
        client_of(chatting).chat.completions.create(**{"messages": say("count 1"), **fields})

    body = refusal.value.body
    assert {"message", "type", "param", "code"} == set(body)
    assert body["type"] == "invalid_request_error"


def events_of(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.alone
def test_generation_ends_when_its_client_leaves(chatting, tmp_path):
    """Within 100 ms; the best of a few, as other work may come between."""

    def seconds(number):
        ended = tmp_path / f"ended{number}"
        body = {"model": "chatty", "messages": say(f"wait {ended}"), "stream": True}
        with chatting.inference.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert "begun" in next(text for text in answer.iter_text() if "begun" in text)
            left = time.monotonic()
        wait_until(lambda: ended.exists() and ended.read_text(), "the call is cancelled")
        return float(ended.read_text()) - left

    assert min(map(seconds, range(4))) < 0.1


ONE_AT_A_TIME = """
import pathlib, time, modelserver
class Patient(modelserver.ChatModel):
    def chat(self, request):
        path = pathlib.Path(request.messages[-1].text)
        path.touch()
        while not path.with_suffix(".end").exists():
            time.sleep(0.01)
        return "end"
"""


def test_request_whose_client_leaves_before_its_turn_is_not_computed(chatting, model_store, tmp_path):
    """While one is computed, neither the one that the worker has ready nor those in the queue."""
    (model_store / "patient.py").write_text(ONE_AT_A_TIME)
    chatting.registered("patient.py", initial_workers=1)
    count = partial(chatting.metric, model_name="patient")

    def send(name, **more):
        body = json.dumps({"model": "patient", "messages": say(str(tmp_path / name)), **more}).encode()
        connection = connect(chatting.port)
        connection.sendall(post("/v1/chat/completions", body, "Connection: close"))
        return connection

    with send("first") as first:
        wait_until((tmp_path / "first").exists, "one is computed")
        left = [send(f"left{number}", stream=number % 2 == 0) for number in range(4)]
        wait_until(lambda: count("ts_inference_requests_total") == 5, "the others wait")
        for connection in left:
            connection.close()
        wait_until(lambda: count("modelserver_cancelled_total") == 4, "all have left")
        (tmp_path / "first.end").touch()
        assert b'"content":"end"' in everything(first)
    (tmp_path / "last.end").touch()
    with send("last") as last:
        assert b'"content":"end"' in everything(last)

    assert {path.name for path in tmp_path.iterdir()} == {"first", "first.end", "last", "last.end"}
    assert count("modelserver_requests_total", code="2xx") == 2
    assert count("modelserver_streams_aborted_total") == 0


@pytest.mark.slow  # waits for a timeout
def test_chat_that_never_ends_holds_up_no_others(chatting, model_store, tmp_path):
    """Nothing can end its thread: another process takes the place of its worker's."""
    (model_store / "patient.py").write_text(ONE_AT_A_TIME)
    chatting.registered("patient.py", model_name="stuck", initial_workers=1, response_timeout=1)
    chat = partial(client_of(chatting).chat.completions.create, model="stuck")
    (tmp_path / "next.end").touch()
    with pytest.raises(openai.InternalServerError, match="504"):
        chat(messages=say(str(tmp_path / "first")))

    assert chat(messages=say(str(tmp_path / "next"))).choices[0].message.content == "end"


@pytest.fixture(scope="module")
def small(tmp_path_factory, model_store):
    """A server with tokens, two front ends and queues for one request."""
    settings = {"job_queue_size": 1, "frontend_processes": 2, "token_authorization": "always"}
    settings["max_request_size"] = 1 << 19
    models = {"load_models": "chatty=chatty.mar,letters=letters.mar", "default_workers_per_model": 1}
    home = Home(tmp_path_factory.mktemp("small"))
    with serving(Server(home, model_store, settings={**settings, **models})) as started:
        for client, scope in ((started.inference, "inference"), (started.management, "management")):
            client.headers["Authorization"] = f"Bearer {started.tokens()[scope]}"
        for name in ("chatty", "letters"):
            started.wait_ready(name)
        yield started


def test_dying_worker_loses_no_request_that_nobody_has_seen(small, tmp_path):
    """A stream that has begun ends with an error event; what had no byte yet is tried once more."""
    body = {"model": "chatty", "messages": say("die"), "stream": True}
    events = events_of(small.inference.post("/v1/chat/completions", json=body))
    client = client_of(small, key=small.tokens()["inference"])
    again = client.chat.completions.create(model="chatty", messages=say(f"once {tmp_path / 'whole'}"))
    body = {"model": "chatty", "messages": say(f"once {tmp_path / 'stream'}"), "stream": True}
    stream = small.inference.post("/v1/chat/completions", json=body)

    assert events[1]["choices"][0]["delta"]["content"] == "begun "
    assert "Worker died" in events[-1]["error"]["message"]
    assert "[DONE]" not in events
    assert again.choices[0].message.content == "again "
    assert stream.text.endswith("data: [DONE]\n\n")
    assert events_of(stream)[1]["choices"][0]["delta"]["content"] == "again "


PRETENDED = """
import pytest
from tests.handlers.language.pretended_vllm import pretend
pretend(pytest.MonkeyPatch())
from modelserver_handlers.language.vllm_handler import VLLMHandler
class Pretended(VLLMHandler):
    async def initialize(self, context):
        context.model_yaml_config = {"handler": {"vllm_engine_config": {"model": "some/model"}}}
        await super().initialize(context)
"""


def test_engine_that_dies_ends_its_stream(tmp_path):
    """With an error, after what it had generated. The description and a metric have the reason, and another
    worker answers.
    """
    store = tmp_path / "store"
    store.mkdir()
    (store / "pretended.py").write_text(PRETENDED)
    path = os.pathsep.join(map(str, (ROOT / "app", ROOT / "handlers", ROOT)))
    home = Home(tmp_path / "home", {"PYTHONPATH": path}, for_children=True)
    with serving(Server(home, store)) as server:
        server.registered("pretended.py", model_name="m", initial_workers=1)
        before = server.describe("m")["workers"][0]["pid"]
        body = {"model": "m", "prompt": "one two die", "stream": True}
        events = events_of(server.inference.post("/v1/completions", json=body))
        described = server.describe("m")
        server.wait_ready("m")
        failures = server.metric("modelserver_worker_failures_total", model_name="m", type="WorkerDied")
        again = server.inference.post("/v1/completions", json={"model": "m", "prompt": "one two"})
        assert server.describe("m")["workers"][0]["pid"] != before
    assert events[0]["choices"][0]["text"] == "one "
    assert "Worker died" in events[-1]["error"]["message"]
    assert again.json()["choices"][0]["text"] == "one two "
    ended = described["workers"][0]["lastEnd"]["reason"]
    assert ended == "vLLM's engine has ended: EngineCore encountered an issue"
    assert failures == 1


def test_streams_have_until_the_end_of_the_drain(start_server, tmp_path):
    """Then they end with an error; those with a deadline at the deadline. What waits may be tried again."""
    settings = {"default_workers_per_model": 1, "drain_timeout": 0}
    server = start_server(load_models="chatty=chatty.mar,letters=letters.mar", **settings)
    body = {"model": "chatty", "messages": say(f"wait {tmp_path / 'late'}"), "stream": True}
    server.wait_ready("chatty")
    late = server.inference.post("/v1/chat/completions", json=body, headers={"x-request-timeout-ms": "1000"})
    wait_until((tmp_path / "late").exists, "the generation of the late one has ended")
    server.wait_ready("letters")
    psutil.Process(server.describe("letters")["workers"][0]["pid"]).suspend()
    body["messages"] = say(f"wait {tmp_path / 'ended'}")
    embed = partial(server.inference.post, "/v1/embeddings", json={"model": "letters", "input": "a"})
    with (
        ThreadPoolExecutor() as executor,
        server.inference.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        waiting = executor.submit(embed)
        server.wait_arrived("letters", 1)
        parts = answer.iter_text()
        text = next(parts)
        server.terminate()
        text += "".join(parts)
        refused = waiting.result()

    assert "deadline" in events_of(late)[-1]["error"]["message"]
    assert text.endswith('"type":"server_error","param":null,"code":null}}\n\n')
    assert "[DONE]" not in text
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "server_error"


def test_stream_may_end_while_the_server_drains(start_server, tmp_path):
    """It is whole."""
    server = start_server(load_models="chatty=chatty.mar", default_workers_per_model=1)
    server.wait_ready("chatty")
    body = {"model": "chatty", "messages": say(f"until {tmp_path / 'go'}"), "stream": True}
    with server.inference.stream("POST", "/v1/chat/completions", json=body) as answer:
        parts = answer.iter_text()
        text = next(parts)
        server.terminate()
        wait_until(lambda: "Stopping" in server.home.log(), "it drains")
        (tmp_path / "go").touch()
        text += "".join(parts)

    assert '"content":"end "' in text
    assert text.endswith("data: [DONE]\n\n")


def test_full_queue_is_a_429_that_clients_try_again(small):
    """With the seconds to wait; on other routes it stays a 503."""
    workers = small.workers()
    for process in workers:
        process.suspend()
    try:
        body = {"model": "letters", "input": "a"}
        with ThreadPoolExecutor(8) as executor:
            answers = [executor.submit(small.inference.post, "/v1/embeddings", json=body) for _ in range(8)]
            refused = next(a.result() for a in _finished(answers) if a.result().status_code != 200)
            other = small.predict("letters", b"a")
            for process in workers:
                process.resume()
    finally:
        for process in workers:
            process.resume()

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert error["message"] == "Too many requests wait for model letters; try again later."
    assert other.status_code == 503


def _finished(answers):
    return wait_until(lambda: [answer for answer in answers if answer.done()], "a request is refused")


def test_wrong_token_is_an_authentication_error(small):
    """At the list of models, too, which is KServe's as well; its predictions have TorchServe's 400."""
    for path in PATHS:
        with pytest.raises(openai.AuthenticationError) as refusal:
            client_of(small, path, key="wrong").models.list()
        assert refusal.value.type == "authentication_error"
    with pytest.raises(openai.AuthenticationError):
        client_of(small, key="wrong").models.retrieve("chatty:1.0")
    headers = {"authorization": "Bearer wrong"}
    assert small.inference.post("/v1/models/chatty:predict", headers=headers).status_code == 400


@pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
def test_refusal_before_the_route_has_openais_form(small, prefix):
    of_client = "invalid_request_error"
    for method, path, more, expected in (
        ("POST", "completions", {"headers": {"authorization": "x"}}, (401, "authentication_error")),
        ("POST", "unknown", {}, (404, of_client)),
        ("GET", "completions", {}, (405, of_client)),
        ("POST", "completions", {"content": bytes(1 << 20)}, (413, of_client)),
    ):
        answer = small.inference.request(method, f"{prefix}/{path}", **more)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == expected
        assert error.keys() == {"message", "type", "param", "code"}


def test_api_can_be_turned_off(start_server):
    """KServe's list of models is then as before."""
    server = start_server(load_models="chatty=chatty.mar", default_workers_per_model=1, openai_api="false")
    server.wait_ready("chatty")
    body = {"model": "chatty", "messages": say("count 1")}
    answer = server.inference.post("/v1/chat/completions", json=body)

    assert answer.status_code == 404
    assert server.inference.get("/v1/models").json() == {"models": ["chatty"]}
