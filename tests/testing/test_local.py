import threading

import psutil
import pytest

from modelserver import testing
from modelserver.errors import ConfigError


def test_a_prediction_is_answered_by_the_worker(doubler):
    """It is answered by the model's worker, as the server answers it."""
    answer = doubler.predict(21)

    assert (answer.status, answer.json(), answer.content_type) == (200, 42, "application/json")
    assert answer.ok
    assert doubler.name == "Doubler"
    assert answer.handling_ms > 0


def test_requests_of_a_batch_are_one_call(doubler):
    answers = doubler.predict_batch(range(6))

    assert [answer.json() for answer in answers] == [0, 2, 4, 6, 8, 10]
    assert [answer.batch_size for answer in answers] == [4, 4, 4, 4, 2, 2]
    good, bad = doubler.predict_batch([1, "one"])
    assert (good.json(), bad.status, bad.ok) == (2, 400, False)
    assert "Expected `int`" in bad.json()["message"]


def test_v1_and_v2_take_rows_or_bodies(doubler):
    """V1 and V2 take lists of rows, or whole bodies."""
    tensor = {"name": "rows", "datatype": "INT64", "shape": [2], "data": [1, 2]}

    assert doubler.v1([1, 2]).json()["predictions"] == [2, 4]
    assert doubler.v1({"inputs": [3]}).json()["predictions"] == [6]
    assert doubler.v2([tensor]).json()["outputs"][0]["data"] == [2, 4]
    assert doubler.v2({"id": "mine", "inputs": [tensor]}).json()["id"] == "mine"


def test_chat_is_answered_at_its_endpoint(tmp_path):
    """Whole and as events, as OpenAI's clients get it; ``predict`` gets the text alone."""
    (tmp_path / "chat.py").write_text(
        "import modelserver\n"
        "class Chat(modelserver.ChatModel):\n"
        "    def chat(self, request):\n"
        "        yield from ('one', ' two')\n"
    )
    with testing.client(tmp_path / "chat.py") as client:
        path = "/v1/chat/completions"
        body = {"model": client.name, "messages": [{"role": "user", "content": "go"}]}
        whole, events = client.post(path, body), client.post(path, {**body, "stream": True})
        text = client.predict(body)

    assert whole.json()["choices"][0]["message"]["content"] == text.body.decode() == "one two"
    assert events.body.endswith(b"data: [DONE]\n\n")
    assert events.content_type.startswith("text/event-stream")


def test_application_gets_any_method_and_path(tmp_path):
    (tmp_path / "shop.py").write_text(
        "async def app(scope, receive, send):\n"
        "    await send({'type': 'http.response.start', 'status': 202})\n"
        "    text = scope['method'] + ' ' + scope['path'] + '?' + scope['query_string'].decode()\n"
        "    await send({'type': 'http.response.body', 'body': text.encode()})\n"
    )
    with testing.client(tmp_path / "shop.py") as client:
        answer = client.request("DELETE", "/predictions/shop/items/5?a=b")
    with testing.client(tmp_path / "shop.py", route="/api") as client:
        own = client.request("GET", "/api/items/5")

    assert (answer.status, answer.body) == (202, b"DELETE /predictions/shop/items/5?a=b")
    assert own.body == b"GET /api/items/5?"


def test_an_annotated_function_is_served_by_every_protocol(script):
    """It is served over every protocol, with batches and its signature, as predict of a class is."""
    with testing.client(f"{script}:longest", batch_size=2) as client:
        tensor = {"name": "rows", "datatype": "BYTES", "shape": [2], "data": ["a", "bb"]}
        assert client.name == "longest"
        assert [answer.text for answer in client.predict_batch(["a", "bb"])] == ["bb", "bb"]
        assert client.v1(["a", "bb"]).json()["predictions"] == ["bb", "bb"]
        assert client.v2([tensor]).json()["outputs"][0]["data"] == ["bb", "bb"]
        assert client.predict(1).status == 400
        assert client.model.annotations.inputs.media == "text/plain"


def test_settings_of_the_server_apply(doubler, script):
    """False is a value, too."""
    client = testing.client(f"{script}:Doubler", isolate_failures=False)

    assert doubler.v1(list(range(10))).status == 413
    assert not client._loaded.settings.isolate_failures


def test_only_paths_for_inference_can_be_called(doubler):
    assert doubler.post("/explanations/Doubler", 1).status == 501
    assert doubler.post("/predictions/other", 1).status == 404
    with pytest.raises(ValueError, match="'/models' is not a path for inference"):
        doubler.post("/models", 1)


def test_headers_reach_handlers_and_streams_come_in_parts(script):
    before = threading.active_count()
    with testing.client(f"{script}:Teller") as client:
        (process,) = filter(None, [worker.process for worker in client.model.pool.workers])
        answer = client.predict(b"", {"Who": "me"})

        assert (answer.parts, answer.text) == ((b"me", b"!"), "me!")

    assert not psutil.pid_exists(process.pid)
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="not open"):
        client.predict(1)


@pytest.mark.parametrize(
    ("source", "settings", "error", "message"),
    [
        ("{}:Doubler", {"batchsize": 1}, TypeError, "batchsize: not an option"),
        ("{}:Doubler", {"max_request_size": "much"}, ConfigError, "max_request_size=much"),
        ("{}.not", {}, ConfigError, "does not exist"),
        (testing.Client.close, {}, ValueError, "inside of another"),
    ],
)
def test_wrong_names_and_files_are_refused(script, source, settings, error, message):
    with pytest.raises(error, match=message):
        testing.client(source.format(script) if isinstance(source, str) else source, **settings)
