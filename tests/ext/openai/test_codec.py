"""From bodies of OpenAI's API to rows, and from answers to documents."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.offload.calls import OffloadCall, encode, perform, read_result
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.weight import TooHeavy
from modelserver.engine.wire.messages import BODY, INSTANCE, Answer, Row
from modelserver.errors import (
    BadRequest,
    HandlerError,
    InternalError,
    ModelNotFound,
    PayloadTooLarge,
    ServiceUnavailable,
)
from modelserver.ext.openai.codec import NAME, PATHS, OpenAI, Rows, split
from modelserver.surface.http.answers import error_body
from modelserver.surface.inference.routes import Route, target_finder

find = target_finder([(NAME, PATHS)])
CHAT = "v1/chat/completions"
CODEC = OpenAI(RequestLimits(), Any)


def exchange(path, body, method=b"POST"):
    """A request as the codec sees it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    target = find(path.encode())
    return SimpleNamespace(target=target, body=content, method=method, content_type="")


def model(endpoints, *, ready=True, failure="", workers=1):
    dispatch = SimpleNamespace(takes_scopes="*" in endpoints)
    pool = SimpleNamespace(ready=ready, failure=failure, dispatch=dispatch, workers=[None] * workers)
    return SimpleNamespace(name="m", endpoints=endpoints, pool=pool)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", Route("", url_path=CHAT, protocol=NAME)),
        ("/v1/embeddings/", Route("", url_path="v1/embeddings", protocol=NAME)),
        ("/openai/v1/completions", Route("", url_path="v1/completions", protocol=NAME)),
        ("/predictions/m/1.0/v1/rerank", Route("m", "1.0", "v1/rerank", protocol=NAME)),
        ("/predictions/m/v1/score", Route("m", url_path="v1/score", protocol=NAME)),
        ("/predictions/m/v1/models", Route("m", url_path="v1/models", protocol=NAME)),
        ("/predictions/m/1.0/v1/models", Route("m", "1.0", "v1/models", protocol=NAME)),
        ("/predictions/m/1.0/v1/other", Route("m", "1.0", "v1/other")),
        ("/v1/models/m:predict", Route("m", protocol="v1")),
    ],
)
def test_paths_are_those_of_three_servers(path, route):
    """OpenAI's, KServe's and TorchServe's; others are served as before."""
    target = find(path.encode())

    assert target.route == route
    assert route.protocol != NAME or route.template == f"/{route.url_path}", "as spans name it"
    assert find(b"/v1/models") is find(b"/openai/v1/models") is None


@pytest.mark.parametrize("endpoints", [{}, {"v1/embeddings": True}])
@pytest.mark.parametrize("ready", [True, False])
def test_list_of_models_shares_no_batch_with_inputs(endpoints, ready):
    """Handlers look at the path of a batch's first row; a task of transformers has no endpoints."""
    some = model(endpoints, ready=ready)
    listed = CODEC.read(exchange("/predictions/m/v1/models", b"", b"GET"), some)

    assert (listed.url_path, listed.key) == ("v1/models", b"v1/models")


@pytest.mark.parametrize(
    ("name", "version"), [("m", None), ("m:2.0", "2.0"), ("m:", None), ("m:2/poet", "2"), ("m/poet", None)]
)
def test_body_names_model_and_version(name, version):
    request = exchange("/v1/chat/completions", {"messages": [], "model": name})
    CODEC.address(request)
    route = request.target.route

    assert (route.model, route.version, route.url_path) == ("m", version, CHAT)


@pytest.mark.parametrize(
    "body",
    [{}, *({"model": it} for it in ("", "/poet", ":1", 7)), [], b"{", b'{"model": "\xff"}', b"[" * 100_000],
)
def test_body_without_a_model_is_refused(body):
    with pytest.raises(BadRequest):
        CODEC.address(exchange("/v1/chat/completions", body))


def test_chat_reaches_the_handler_unchanged():
    """In bytes, with its endpoint; also while the model loads, which it then waits for."""
    body = b'{"model":"m", "messages": []}'
    request = exchange("/v1/chat/completions", body)
    parsed = [CODEC.read(request, model({CHAT: False})), CODEC.read(request, model({}, ready=False))]

    assert {(each.bodies[0], each.kind, each.url_path) for each in parsed} == {(body, BODY, CHAT)}


def test_model_of_another_kind_is_named():
    request = exchange("/v1/chat/completions", {})
    with pytest.raises(BadRequest, match="does not serve /v1/chat/completions; it serves /v1/embeddings"):
        CODEC.read(request, model({"v1/embeddings": True}))
    with pytest.raises(BadRequest, match="it serves none of this API's endpoints"):
        CODEC.read(request, model({}))
    with pytest.raises(ServiceUnavailable, match="no memory"):
        CODEC.read(exchange("/v1/embeddings", {}), model({}, ready=False, failure="no memory"))
    # The queue refuses it, and says why.
    assert CODEC.read(exchange("/v1/embeddings", {}), model({}, ready=False, workers=0)).bodies == [b"{}"]


def test_handlers_that_read_the_path_get_what_they_got():
    """Those of TorchServe, which say nothing of endpoints."""
    request = exchange("/predictions/m/1.0/v1/chat/completions", b"{}")
    request.content_type = "application/json"
    parsed = CODEC.read(request, model({}))

    assert (parsed.url_path, parsed.content_type, parsed.bodies) == (CHAT, "application/json", [b"{}"])


def test_endpoints_of_an_application_are_its_own():
    """What the handler does not answer itself reaches its ASGI application, with the path and the headers."""
    request = exchange("/openai/v1/rerank", {"model": "m"})
    request.headers, request.http_version = [(b"Accept", b"*/*")], "1.1"
    parsed = CODEC.read(request, model({CHAT: False, "*": False}))
    scope = json.loads(parsed.extra)

    assert (scope["path"], scope["root_path"]) == ("/openai/v1/rerank", "/openai")
    assert CODEC.read(exchange("/v1/chat/completions", {}), model({CHAT: False, "*": False})).extra == b""


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("embeddings", {"input": "a", "truncate_prompt_tokens": 3}),
        ("embeddings", {"messages": []}),
        ("embeddings", {"input": "a", "model": "m/poet"}),
        ("score", {"queries": "a", "documents": ["b"]}),
        ("rerank", {"query": "a", "documents": ["b"], "priority": 1, "model": "m:1.0/poet"}),
    ],
)
async def test_rows_with_other_fields_are_the_applications(endpoint, fields):
    """It also knows adapters of models that pool."""
    request = exchange(f"/v1/{endpoint}", fields)
    request.headers, request.http_version = [], "1.1"
    server = model({f"v1/{endpoint}": True, "*": False})

    assert json.loads(CODEC.read(request, server).extra)["path"] == f"/v1/{endpoint}"
    assert json.loads((await CODEC.read_off_loop(request, server)).extra)["path"] == f"/v1/{endpoint}"
    plain = exchange("/v1/embeddings", {"model": "org/m", "input": "a", "user": "u"})
    assert isinstance(CODEC.read(plain, model({"v1/embeddings": True, "*": False})), Rows)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({"input": "a"}, [b'"a"']),
        ({"input": "a", "encoding_format": None}, [b'"a"']),
        ({"input": ["a", "b"]}, [b'"a"', b'"b"']),
        ({"input": [1, 2]}, [b"[1, 2]"]),
        ({"input": [[1], [2]]}, [b"[1]", b"[2]"]),
    ],
)
def test_each_input_is_a_row(fields, rows):
    """Texts and lists of token ids; options decide which share a batch."""
    parsed = split("v1/embeddings", json.dumps(fields).encode())
    options = {"encoding_format": "base64", "dimensions": 2}
    others = split("v1/embeddings", json.dumps({**fields, **options}).encode())

    assert (parsed.bodies, parsed.kind, parsed.extra) == (rows, INSTANCE, b"")
    assert json.loads(others.extra) == options
    assert parsed.key != others.key


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("v1/embeddings", {}),
        ("v1/embeddings", {"input": []}),
        ("v1/embeddings", {"input": "a", "encoding_format": "hex"}),
        ("v1/rerank", {"query": "q", "documents": []}),
        ("v1/rerank", {"query": "q", "documents": [1]}),
        ("v1/rerank", {"query": "q", "documents": ["d"], "top_n": 0}),
        ("v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
        ("v1/score", {"text_1": [], "text_2": []}),
    ],
)
def test_body_without_inputs_is_refused(endpoint, fields):
    with pytest.raises(BadRequest):
        split(endpoint, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("v1/rerank", {"query": "q" * 100_000, "documents": ["d"] * 1000}),
        ("v1/score", {"text_1": "q" * 100_000, "text_2": ["d"] * 1000}),
        ("v1/score", {"text_1": "\1" * 16_667, "text_2": ["d"] * 1000}),
    ],
)
def test_text_of_many_pairs_is_refused_before_it_is_repeated(endpoint, fields):
    """A body of 100 kB would become 100 MB, also one whose characters have six bytes when encoded."""
    with pytest.raises(PayloadTooLarge, match=r"10000[24] bytes in each of 1000 pairs"):
        split(endpoint, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("v1/rerank", {"query": "q" * 10_000, "documents": ["d"] * 1000}),
        ("v1/score", {"text_1": "q" * 10_000, "text_2": ["d"] * 1000}),
        ("v1/embeddings", {"input": ["a"] * 6000}),
    ],
)
async def test_heavy_rows_are_made_by_a_helper(endpoint, fields):
    """Many of them, and few whose text is repeated: 10 MB of a body of 15 kB."""
    calls = []

    async def call(seconds, function, *arguments):
        calls.append(function)
        return function(*arguments)

    codec = OpenAI(RequestLimits(), SimpleNamespace(call=call))
    request, server = exchange(f"/{endpoint}", {"model": "m", **fields}), model({endpoint: True})
    with pytest.raises(TooHeavy):
        codec.read(request, server)
    parsed = await codec.read_off_loop(request, server)

    assert (calls, len(parsed.bodies)) == ([split], len(list(fields.values())[-1]))


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("v1/embeddings", {"input": ["a", "b"], "dimensions": 2}),
        ("v1/rerank", {"query": "q", "documents": ["a", "b"], "top_n": 1, "return_documents": False}),
        ("v1/score", {"text_1": "q", "text_2": ["a", "b"]}),
    ],
)
def test_rows_of_a_helper_are_those_of_the_loop(endpoint, fields):
    """Heavy bodies are split by a helper process: what it sends is of the same kind, with all its fields."""
    body = json.dumps(fields).encode()
    here = split(endpoint, body)
    message = encode((endpoint, body))
    done = perform(OffloadCall(split.__module__, split.__name__, 1.0, msgspec.Raw(message)))
    there = read_result(split, done.value)

    assert (type(there), encode(there)) == (type(here), encode(here))


def document(endpoint, fields, *answers):
    """What a request is answered with if its rows get these answers."""
    parsed = split(endpoint, json.dumps(fields).encode())
    assert isinstance(parsed, Rows)
    request = Request("r", [Row("r", 0)] * len(parsed.bodies), parsed.bodies, 0.0)
    request.deliver(0, [(Answer(0), json.dumps(answer).encode()) for answer in answers])
    return json.loads(parsed.encode(model({}), request)[0])


def test_vectors_become_one_list():
    answers = [{"embedding": [1.5], "tokens": 2}, {"embedding": "AAA=", "tokens": 3}]
    result = document("v1/embeddings", {"input": ["a", "b"]}, *answers)

    assert [(each["index"], each["embedding"]) for each in result["data"]] == [(0, [1.5]), (1, "AAA=")]
    assert (result["model"], result["usage"]) == ("m", {"prompt_tokens": 5, "total_tokens": 5})


def test_documents_are_sorted_by_score():
    """The best ``top_n`` of them, with their texts unless the client does without."""
    fields = {"query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2}
    answers = [{"score": score, "tokens": 1} for score in (0.1, 0.9, 0.5)]
    ranked = document("v1/rerank", {**fields, "return_documents": None}, *answers)["results"]
    bare = document("v1/rerank", {**fields, "return_documents": False}, *answers)["results"]

    assert [(each["index"], each["document"]["text"]) for each in ranked] == [(1, "b"), (2, "c")]
    assert bare == [{"index": 1, "relevance_score": 0.9}, {"index": 2, "relevance_score": 0.5}]


@pytest.mark.parametrize("answer", [{"score": None}, {"tokens": 1.5}, {"tokens": "2"}, []])
def test_answer_of_the_wrong_type_is_a_failure_of_the_handler(answer):
    with pytest.raises(InternalError, match="answer to a row cannot be read: Expected"):
        document("v1/score", {"text_1": "q", "text_2": "a"}, answer)


@pytest.mark.parametrize(("left", "tokens"), [("q", 3 + 2 + 4), (["q", "r"], 3 + 2 + 3 + 4)])
def test_scores_are_in_the_order_of_the_pairs(left, tokens):
    """One text is compared with all of the others, and counts once where the model reads it by itself;
    several are each compared with their own.
    """
    fields = {"text_1": left, "text_2": ["a", "b"]}
    answers = [{"score": 0.25 * size, "tokens": 2 * size, "query_tokens": 3} for size in (1, 2)]
    result = document("v1/score", fields, *answers)

    assert [each["score"] for each in result["data"]] == [0.25, 0.5]
    assert result["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize(("status", "code"), [(404, "model_not_found"), (400, None)])
def test_missing_adapter_is_a_missing_model(status, code):
    """For clients, the model of a request is all that can be missing, and an adapter is one."""
    error = json.loads(error_body(HandlerError("no poet", status), form=NAME)[1])["error"]
    assert error == {"message": "no poet", "type": "invalid_request_error", "param": None, "code": code}


async def test_a_heavy_body_is_not_read_on_the_event_loop():
    """Neither for the name of an adapter nor for fields that only an application knows."""
    request = exchange("/v1/embeddings", {"model": "m/nobody", "input": "x" * 2_000_000})

    for server in model({"v1/embeddings": True}), model({"v1/embeddings": True, "*": True}):
        with pytest.raises(TooHeavy):
            CODEC.read(request, server)
    with pytest.raises(ModelNotFound):
        await CODEC.read_off_loop(request, model({"v1/embeddings": True}))
