"""``modelserver.ChatModel``: what its methods return or yield becomes answers."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from tests.handlers.parts import Stream

import modelserver
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language import chat
from modelserver_handlers.language.chat import _AHEAD, CHAT, COMPLETIONS, _in_thread


class Bench:
    """A model that has been initialised; each call has a context of its own, as in a worker."""

    def __init__(self, model):
        self.model = model()
        self.context = Context("m", "/", None, 1, None, "0")
        self.stream = Stream()

    async def send(self, endpoint=CHAT, **fields):
        await self.model.initialize(self.context)
        state = BatchState(["r"], properties=[{"url_path": endpoint}])
        state.stream = self.stream
        if endpoint in (CHAT, ""):
            fields.setdefault("messages", [{"role": "user", "content": "one two three"}])
        body = json.dumps({"model": "m", **fields}).encode()
        (answer,) = await self.model.handle([{"body": body}], self.context._ms_of_request(state))
        return answer.encode() if isinstance(answer, str) else bytes(answer)

    async def whole(self, endpoint=CHAT, **fields):
        return json.loads(await self.send(endpoint, **fields))

    async def events(self, endpoint=CHAT, **fields):
        """The documents of the events, without the last."""
        return self.stream.events(await self.send(endpoint, stream=True, **fields))


class Words(modelserver.ChatModel):
    """Yields words in a thread."""

    def chat(self, request):
        for word in request.messages[-1].text.split():
            yield word + " "

    def complete(self, request, prompt):
        return f"{prompt}!"


class Poets(Words):
    """Has an adapter."""

    adapters = ("poet",)


class AsyncWords(modelserver.ChatModel):
    """Yields words in the event loop."""

    async def load(self, context):
        await asyncio.sleep(0)
        self.end = " "

    async def chat(self, request):
        for word in request.messages[-1].text.split():
            yield word + self.end


class Text(modelserver.ChatModel):
    """Returns a text."""

    def chat(self, request):
        return request.messages[-1].text + " "


class AsyncText(modelserver.ChatModel):
    """Returns a text after waiting."""

    async def chat(self, request):
        await asyncio.sleep(0)
        return request.messages[-1].text + " "


class Endless(modelserver.ChatModel):
    """Counts what it yields, without an end."""

    count = 0

    async def chat(self, request):
        while True:
            self.count += 1
            yield "word "
            await asyncio.sleep(0)


async def test_model_waits_while_the_client_reads_nothing():
    """As the worker's window says, whose gate closes."""
    bench = Bench(Endless)
    gate = bench.stream.gate = asyncio.Event()  # type: ignore[attr-defined]
    answering = asyncio.create_task(bench.send(stream=True))
    for _ in range(20):
        await asyncio.sleep(0)
    waiting = bench.model.count  # type: ignore[attr-defined]
    gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    answering.cancel()

    assert waiting == 1
    assert bench.model.count > 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", [Words, AsyncWords, Text, AsyncText])
async def test_any_kind_of_method_answers_a_chat(model):
    whole = await Bench(model).whole()
    events = await Bench(model).events(stream_options={"include_usage": True})
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]

    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "one two three "}
    assert whole["usage"] == events[-1]["usage"]
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", "content": ""}, {})
    assert "".join(delta.get("content", "") for delta in deltas) == "one two three "


@pytest.mark.parametrize(
    ("fields", "text", "finish"),
    [
        ({}, "one two three ", "stop"),
        ({"max_tokens": 2}, "one two ", "length"),
        ({"max_completion_tokens": 1, "max_tokens": 2}, "one ", "length"),
        ({"stop": "two"}, "one ", "stop"),
        ({"stop": ["e t", "o "]}, "on", "stop"),
        ({"stop": "e three"}, "one two three ", "stop"),
    ],
)
async def test_limits_of_the_request_end_the_answer(fields, text, finish):
    choice = (await Bench(Words).whole(**fields))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, finish)


async def test_each_choice_is_a_call():
    chat = await Bench(Words).whole(n=2)
    completions = await Bench(Words).whole(COMPLETIONS, prompt=["a", "b"], n=2)
    events = await Bench(Words).events(n=2, max_tokens=1)

    assert [choice["message"]["content"] for choice in chat["choices"]] == ["one two three "] * 2
    assert [choice["text"] for choice in completions["choices"]] == ["a!", "a!", "b!", "b!"]
    assert [event["choices"][0]["index"] for event in events] == [0, 0, 0, 1, 1, 1]


def yielded(model, request):
    yield {"tool_calls": [{"index": 0, "name": request.tools[0]["name"]}]}


async def returned(model, request):
    return next(yielded(model, request))


@pytest.mark.parametrize("chat", [yielded, returned, lambda *arguments: next(yielded(*arguments))])
async def test_parts_of_a_message_are_passed_on(chat):
    """Yielded, or returned as a whole message."""
    caller = type("Caller", (modelserver.ChatModel,), {"chat": chat})
    choice = (await Bench(caller).whole(tools=[{"name": "look"}]))["choices"][0]
    events = await Bench(caller).events(tools=[{"name": "look"}])

    assert choice["message"]["tool_calls"] == [{"index": 0, "name": "look"}]
    assert choice["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_generator_in_a_thread_is_closed_when_nobody_takes_its_pieces():
    closed = threading.Event()

    class Endless(modelserver.ChatModel):
        def chat(self, request):
            try:
                while True:
                    yield "a"
            finally:
                closed.set()

    answer = await Bench(Endless).whole(stop="aa")

    assert answer["choices"][0]["message"]["content"] == ""
    assert await asyncio.to_thread(closed.wait, 60)


async def test_text_of_a_whole_message_is_answered_and_counted():
    class Speaker(modelserver.ChatModel):
        def chat(self, request):
            return {"content": "Hello there", "tool_calls": []}

    bench = Bench(Speaker)
    *_, usage = await bench.events(stream_options={"include_usage": True})

    assert await bench.send("") == b"Hello there"
    assert await Bench(Words).send("") == b"one two three "
    assert (await bench.whole())["usage"]["completion_tokens"] == usage["usage"]["completion_tokens"] == 2


async def test_thread_waits_while_the_client_reads_nothing(monkeypatch):
    """Pieces that nobody takes are not made; all arrive in the end."""
    pauses, is_over = threading.Event(), False

    class Room(threading.Event):
        def wait(self, timeout=None):
            pauses.set()
            return super().wait(timeout)

    def pieces():
        nonlocal is_over
        for number in range(50 * _AHEAD):
            yield str(number)
        is_over = True
        pauses.set()

    monkeypatch.setattr(chat, "threading", SimpleNamespace(Event=Room), raising=False)
    with ThreadPoolExecutor(1) as executor:
        source = _in_thread(executor, pieces)
        taken = [await anext(source)]
        assert await asyncio.to_thread(pauses.wait, 60)
        assert not is_over
        taken += [piece async for piece in source]

    assert taken == list(map(str, range(50 * _AHEAD)))


async def test_thread_that_waits_for_a_client_is_free_when_it_leaves(monkeypatch):
    """Otherwise the model would answer nobody any more."""
    waits, frees = threading.Event(), threading.Event()

    class Room(threading.Event):
        def wait(self, timeout=None):
            waits.set()
            if super().wait(30):
                frees.set()

    monkeypatch.setattr(chat, "threading", SimpleNamespace(Event=Room))
    with ThreadPoolExecutor(1) as executor:
        source = _in_thread(executor, lambda: map(str, range(50 * _AHEAD)))
        await anext(source)
        assert await asyncio.to_thread(waits.wait, 60)
        await source.aclose()
        answer = [piece async for piece in _in_thread(executor, lambda: "next")]

    assert frees.is_set()
    assert answer == ["next"]


async def test_call_whose_client_has_left_does_not_run():
    """It waited for the thread, as another's call could not be ended."""
    calls, go = list[str](), threading.Event()

    def answer(name):
        calls.append(name)
        go.wait(60)
        return name

    async def take(name):
        return [piece async for piece in _in_thread(executor, partial(answer, name))]

    with ThreadPoolExecutor(1) as executor:
        tasks = [asyncio.create_task(take(name)) for name in ("first", "left", "last")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        go.set()
        answers = await asyncio.gather(tasks[0], tasks[2])

    assert answers == [["first"], ["last"]]
    assert calls == ["first", "last"]


async def test_call_lasts_until_its_thread_is_free():
    """Otherwise the server would send the next request to a worker that cannot compute it."""
    runs, go = threading.Event(), threading.Event()

    def answer():
        runs.set()
        go.wait(60)
        return "late"

    async def take():
        return [piece async for piece in _in_thread(executor, answer)]

    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(take())
        await asyncio.to_thread(runs.wait, 60)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        lasts = not task.done()
        go.set()
        await asyncio.wait({task})

    assert (lasts, task.cancelled()) == (True, True)


async def test_instance_of_v1_is_a_chat():
    bench = Bench(Words)
    await bench.model.initialize(bench.context)
    context = bench.context._ms_of_request(BatchState(["r"]))
    assert await bench.model.handle([{"messages": [{"role": "user", "content": "a b"}]}], context) == ["a b "]


async def test_error_of_the_model_is_raised():
    class Failing(modelserver.ChatModel):
        def chat(self, request):
            yield "a"
            raise PredictionException("too long", 400)

    with pytest.raises(PredictionException, match="too long"):
        await Bench(Failing).whole()


@pytest.mark.parametrize(
    ("endpoint", "fields", "status"), [(CHAT, {"n": 0}, 400), (COMPLETIONS, {"prompt": "a"}, 404)]
)
async def test_request_that_cannot_be_answered_is_refused(endpoint, fields, status):
    with pytest.raises(PredictionException) as refusal:
        await Bench(AsyncWords).send(endpoint, **fields)

    assert refusal.value.error_code == status


def test_concurrency_follows_the_methods():
    class Several(Words):
        concurrency = 4

    assert [kind()._ms_concurrency for kind in (Words, AsyncWords, Several)] == [1, 256, 4]


async def test_class_without_methods_is_not_usable():
    class Nothing(modelserver.ChatModel):
        """Forgets to answer."""

    with pytest.raises(TypeError, match=r"Nothing\.chat\(self, request\) is missing"):
        await Bench(Nothing).send()


async def test_adapters_are_those_of_the_class():
    """What follows another name is a part of it: at TorchServe's path the model's name may be any."""
    for kind, name in ((Poets, "m/poet"), (Words, "org/m"), (Words, "m:1.0")):
        assert (await Bench(kind).whole(model=name))["model"] == name
    with pytest.raises(PredictionException, match=r"`m:1\.0/nobody` does not exist") as refusal:
        await Bench(Poets).whole(model="m:1.0/nobody")

    assert refusal.value.error_code == 404


async def test_adapters_are_listed_below_the_path_of_the_model():
    bench = Bench(Poets)
    await bench.model.initialize(bench.context)
    state = BatchState(["r"], properties=[{"url_path": "v1/models"}])
    (listed,) = await bench.model.handle([{"body": b""}], bench.context._ms_of_request(state))

    assert [each["id"] for each in listed["data"]] == ["m", "m/poet"]
