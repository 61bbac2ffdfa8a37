"""``service_envelope``: what clients send and get with each (reference 14.6)."""

from __future__ import annotations

import contextlib
import functools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import ROOT, Home, Server, serving

from modelserver.tools.archiver import ArchiveConfig, build_archive

# One envelope is enough for every run.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("json", "kservev2")]
TENSOR = {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def enveloped(tmp_path_factory, model_store):
    """A server with this envelope, started when first asked for, with a handler that tells what it saw."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(name):
            home = Home(tmp_path_factory.mktemp(name))
            server = stack.enter_context(serving(Server(home, model_store, (), {"service_envelope": name})))
            return server.registered("saw.mar", batch_size=4, max_batch_delay=300)

        yield start


def saw(value):
    return {"saw": repr(value)}


@pytest.mark.slow
def test_body(enveloped):
    """The handler gets what the bodies hold; answers stay what they are. What is no V1 is refused there."""
    server = enveloped("body")

    assert server.predict("saw", {"instances": [1]}).json() == saw({"instances": [1]})
    assert server.inference.post("/v1/models/saw:predict", json={"x": 1}).status_code == 400


@pytest.mark.parametrize("envelope", ["kserve", SLOW[0]])
def test_instances(enveloped, envelope):
    """On every route a list of instances becomes values, and the answers a list of predictions."""
    server = enveloped(envelope)
    body = {"instances": [1, {"x": 2}]}
    expected = [saw(1), saw({"x": 2})]

    assert server.predict("saw", body).json() == {"predictions": expected}
    assert server.predict("saw", json.dumps(body).encode()).json() == {"predictions": expected}
    form = {"data": (None, json.dumps(body), "application/json")}
    assert server.inference.post("/predictions/saw", files=form).json() == {"predictions": expected}
    assert server.v1("saw", body["instances"]).json()["predictions"] == expected


def test_explanations(enveloped):
    """KServe's key for them is ``explanations``, on both routes."""
    server = enveloped("kserve")
    for path in ("/explanations/saw", "/v1/models/saw:explain"):
        answer = server.inference.post(path, json={"instances": [1]}).json()
        assert answer["explanations"] == [saw(1)]


@pytest.mark.slow
def test_base64(enveloped):
    """``json`` decodes it, on V1 routes too."""
    server = enveloped("json")

    assert server.predict("saw", {"instances": [{"b64": "aGk="}]}).json() == {"predictions": [saw(b"hi")]}
    assert server.v1("saw", [{"b64": "aGk="}]).json()["predictions"] == [saw(b"hi")]


@pytest.mark.slow
def test_open_inference(enveloped):
    """``kservev2`` answers every tensor by name, with the request's id."""
    server = enveloped("kservev2")
    answer = server.predict("saw", {"id": "abc", "inputs": [TENSOR]}).json()
    other = server.predict("saw", {"inputs": [TENSOR]})

    assert {key: answer[key] for key in ("id", "model_name", "model_version")} == {
        "id": "abc",
        "model_name": "saw",
        "model_version": "1.0",
    }
    shaped = saw({**TENSOR, "data": [[1, 2], [3, 4]]})
    assert answer["outputs"] == [{"name": "a", "datatype": "BYTES", "data": [shaped], "shape": [1]}]
    assert other.json()["id"] == other.headers["x-request-id"]


@pytest.mark.slow
def test_what_torchserves_samples_send(enveloped, model_store, tmp_path):
    """``kservev2`` takes a shape of -1 and a text as data; a handler that answers once for two inputs, as the
    sample of its documentation does, gives one output, named after the first.
    """
    server = enveloped("kservev2")
    once = tmp_path / "once.py"
    once.write_text("def handle(data, context):\n    return data and [[len(data)]]\n")
    build_archive(ArchiveConfig("once", str(once), "1.0", export_path=model_store))
    server.registered("once.mar")
    text = {"name": "context", "shape": -1, "datatype": "BYTES", "data": "Bloomberg is a city"}
    numbers = {"name": "n", "shape": [-1], "datatype": "INT64", "data": [1, 2, 3]}
    rows = {**numbers, "shape": [-1, 2], "data": [1, 2, 3, 4]}

    def outputs(model, *inputs):
        answer = server.predict(model, {"id": "abc", "inputs": list(inputs)})
        assert answer.status_code == 200, answer.text
        return answer.json()["outputs"]

    for one, data in (
        (text, "Bloomberg is a city"), ({**text, "data": ["a", "b"]}, "a"),
        (numbers, [1, 2, 3]), ({**numbers, "shape": -1}, [1, 2, 3]), (rows, [[1, 2], [3, 4]]),
    ):  # fmt: skip
        (output,) = outputs("saw", one)
        assert (output["name"], output["data"]) == (one["name"], [saw({**one, "data": data})])
    assert [output["name"] for output in outputs("saw", text, numbers)] == ["context", "n"]
    assert outputs("once", text, numbers) == [
        {"name": "context", "datatype": "INT64", "data": [2], "shape": [1]}
    ]
    refused = server.predict("saw", {"inputs": [{**rows, "shape": [-1, 3]}]})
    assert (refused.status_code, refused.json()["message"]) == (
        400,
        "inputs[0]: 4 values do not fill the shape [-1, 3]",
    )


@pytest.mark.parametrize("envelope", ["kserve", *SLOW])
def test_a_batch_of_requests(enveloped, envelope):
    """Requests that are computed together get their own answers, a malformed one among them its own 400."""
    server = enveloped(envelope)

    def body(number):
        if number == 2:
            return {"nothing": 1}
        tensor = {"name": "n", "shape": [1], "datatype": "INT64", "data": [number]}
        return {"instances": [number], "inputs": [tensor]}

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: server.predict("saw", body(number)), range(4)))

    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    assert answers[2].json()["type"] == "BadRequestException"
    for number in (0, 1, 3):
        if envelope == "kservev2":
            shaped = {**body(number)["inputs"][0]}
            assert answers[number].json()["outputs"][0]["data"] == [saw(shaped)]
        else:
            assert answers[number].json() == {"predictions": [saw(number)]}
    together = {answer.headers["x-batch-id"] for answer in answers if answer.status_code == 200}
    assert len(together) < 3


@pytest.mark.parametrize("envelope", ["kserve", *SLOW])
def test_strict_v1(enveloped, envelope):
    """A V1 body without instances is a 400, whatever the handler."""
    answer = enveloped(envelope).inference.post("/v1/models/saw:predict", json={"x": 1})

    assert (answer.status_code, "no instances in the request" in answer.json()["error"]) == (400, True)


def test_an_envelope_of_the_models_own(enveloped, model_store, tmp_path):
    """``serviceEnvelope`` of a model-config.yaml wins over the key of config.properties; ``none`` is none."""
    server = enveloped("kserve")
    for name in ("none", "json"):
        config = tmp_path / "model-config.yaml"
        config.write_text(f"serviceEnvelope: {name}\n")
        handler = str(ROOT / "tests" / "e2e" / "model_code" / "saw.py")
        build_archive(ArchiveConfig(f"saw_{name}", handler, "1", config_file=config, export_path=model_store))
        server.registered(f"saw_{name}.mar", split_instances="false")
    body = {"instances": [{"b64": "aGk="}]}

    assert server.predict("saw", body).json() == {"predictions": [saw({"b64": "aGk="})]}
    assert server.predict("saw_none", body).json() == saw({"body": body})
    assert server.inference.post("/v1/models/saw_none:predict", json={"x": 1}).json() == saw(
        {"body": {"x": 1}}
    )
    assert server.predict("saw_json", body).json() == {"predictions": [saw(b"hi")]}


@pytest.mark.parametrize("envelope", ["kserve", *SLOW])
def test_descriptions_need_no_form(enveloped, envelope):
    """``customized=true`` passes through the envelope."""
    answer = enveloped(envelope).management.get("/models/saw", params={"customized": "true"})

    assert answer.json()[0]["customizedMetadata"] == saw({})
