"""Every protocol at the same time: one queue, the same answers, nothing mixed up; and nothing that is sent
makes the server fail (kserve reference 2.2, 5, 6 and 9).
"""

import json
import random
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import NamedTuple

import grpc
import pytest
from hypothesis import given, settings
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_server, oip, predict, stub
from tests.e2e.serving import serving
from tests.engine.tensors.odd_requests import odd_bodies, odd_messages

BATCH = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``left`` and ``right`` gather, ``texts`` until each protocol has a row, ``odd`` takes rows only."""
    with serving(grpc_server(tmp_path_factory.mktemp("all"), model_store)) as started:
        for name in ("left", "right"):
            started.registered("witness.mar", model_name=name, batch_size=BATCH, max_batch_delay=50)
        started.registered("witness.mar", model_name="texts", batch_size=len(TEXTS), max_batch_delay=10_000)
        started.registered("witness.mar", model_name="odd", split_instances=True)
        yield started


@pytest.fixture(scope="module", autouse=True)
def odd_worker(server):
    return worker_of(server)


def worker_of(server):
    (worker,) = server.describe("odd")["workers"]
    assert worker["status"] == "READY"
    return worker["pid"]


class Speaker:
    def __init__(self, server, to):
        self.post = server.inference.post
        self.tensors = stub(to, "inference.GRPCInferenceService")
        self.torchserve = stub(to, f"{INFERENCE}InferenceAPIsService")


@pytest.fixture(scope="module")
def speaker(server):
    with channel(server, "inference") as to:
        yield Speaker(server, to)


class Reply(NamedTuple):
    """The results of a request's rows, and the id of their batch if the protocol has it."""

    answers: list[str]
    batch: str | None

    @property
    def call(self):
        (call,) = {answer.rpartition("|")[2] for answer in self.answers}
        return call

    @property
    def rows(self):
        return [answer.rpartition("|")[0] for answer in self.answers]


def by_prediction(to, model, rows):
    """TorchServe's route; it takes one row."""
    (row,) = rows
    answer = to.post(f"/predictions/{model}", content=row.encode())
    assert answer.status_code == 200, answer.text
    return Reply([answer.text], answer.headers["x-batch-id"])


def by_v1(to, model, rows):
    answer = to.post(f"/v1/models/{model}:predict", json={"instances": [{"data": row} for row in rows]})
    document = answer.json()
    assert document["batchId"] == answer.headers["x-batch-id"]
    return Reply(document["predictions"], document["batchId"])


def by_v2_json(to, model, rows):
    """V2 over REST, texts in JSON."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(rows)], "data": list(rows)}
    return v2_rest_reply(to.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}))


def by_v2_binary(to, model, rows):
    """V2 over REST, bytes behind the JSON, under another name."""
    return post_binary(to, model, "x", "BYTES", [len(rows), 1], with_lengths(rows))


def by_v2_grpc(to, model, rows):
    contents = {"bytes_contents": [row.encode() for row in rows]}
    tensor = {"name": "x", "datatype": "BYTES", "shape": [len(rows)], "contents": contents}
    return v2_grpc_reply(to, model, inputs=[tensor])


def by_v2_grpc_raw(to, model, rows):
    tensor = {"name": "x", "datatype": "BYTES", "shape": [len(rows)]}
    return v2_grpc_reply(to, model, inputs=[tensor], raw_input_contents=[with_lengths(rows)])


def by_torchserve_grpc(to, model, rows):
    """TorchServe's gRPC; it takes one row, and does not tell the batch."""
    (row,) = rows
    answer = to.torchserve.Predictions(predict(model, data=row.encode()))
    return Reply([answer.prediction.decode()], None)


def with_lengths(rows):
    elements = [row.encode() for row in rows]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def post_binary(to, model, name, datatype, shape, data):
    spec = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [spec]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return v2_rest_reply(to.post(f"/v2/models/{model}/infer", content=text + data, headers=headers))


def v2_rest_reply(answer):
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["parameters"]["batchId"] == answer.headers["x-batch-id"]
    return Reply(document["outputs"][0]["data"], document["parameters"]["batchId"])


def v2_grpc_reply(to, model, **fields):
    answer = to.tensors.ModelInfer(oip("ModelInferRequest", model_name=model, **fields))
    outcome = list(answer.outputs[0].contents.bytes_contents)
    rest = answer.raw_output_contents[0] if answer.raw_output_contents else b""
    while rest:
        (length,) = struct.unpack_from("<I", rest)
        outcome.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return Reply([each.decode() for each in outcome], answer.parameters["batchId"].string_param)


TEXTS = (by_prediction, by_v1, by_v2_json, by_v2_binary, by_v2_grpc, by_v2_grpc_raw, by_torchserve_grpc)
# These protocols take one row.
SINGLE = (by_prediction, by_torchserve_grpc)


def at_once(calls):
    start = Barrier(len(calls))

    def run(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, call) for call in calls]]


def test_texts_of_all_protocols_share_a_batch(speaker):
    """A row is a row whoever brings it: those of every protocol are in one call, under one batch id."""
    reply = at_once([lambda ask=ask: ask(speaker, "texts", [ask.__name__]) for ask in TEXTS])

    assert [each.rows for each in reply] == [[f"texts|{ask.__name__}"] for ask in TEXTS]
    assert len({each.call for each in reply}) == 1
    assert len({each.batch for each in reply if each.batch is not None}) == 1


class Request(NamedTuple):
    ask: Callable[[Speaker, str, Sequence[str]], Reply]
    model: str
    rows: list[str]


def traffic(seed, count):
    """Requests of all protocols for two models, by chance; no row is like another."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        ask = chance.choice(TEXTS)
        rows = 1 if ask in SINGLE else chance.randint(1, 3)
        texts = [f"{number}-{row}" + chance.choice(("", "é", "x" * 2000)) for row in range(rows)]
        made.append(Request(ask, chance.choice(("left", "right")), texts))
    return made


@pytest.mark.parametrize("seed", range(2))
def test_random_traffic_gets_its_own_answers(speaker, seed):
    """Clients of all protocols at once send to two models: each gets the answers to its own rows, from its
    own model, in its own order. Rows of one call share a batch id with nobody outside their batch (F22, F23,
    F24).
    """
    requests = traffic(seed, 120)
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(request.ask, speaker, request.model, request.rows) for request in requests]
        reply = [future.result(PATIENCE) for future in running]

    for request, document in zip(requests, reply, strict=True):
        expected = [row.encode("ascii", "backslashreplace").decode() for row in request.rows]
        assert document.rows == [f"{request.model}|{row}" for row in expected]
    sharers = {}
    for place, document in enumerate(reply):
        sharers.setdefault(document.call, []).append(place)
    for places in sharers.values():
        assert len({requests[place].model for place in places}) == 1
        assert sum(len(requests[place].rows) for place in places) <= BATCH
        assert len({reply[place].batch for place in places} - {None}) <= 1
    batches = [{reply[place].batch for place in places} - {None} for places in sharers.values()]
    assert sum(map(len, batches)) == len(set().union(*batches))
    together = [{requests[place].ask for place in places} for places in sharers.values()]
    assert max(map(len, together)) >= 3
    assert set().union(*(each for each in together if len(each) > 1)) == set(TEXTS)


ANY = settings(max_examples=50)
# The last is for a timeout that the request has.
REFUSALS = ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


@given(odd_bodies())
@ANY
def test_no_body_is_the_servers_failure(server, odd):
    """An invalid request is 400 with a reason, or 413; never 500 (F9, F70). A timeout may pass: 504."""
    body, header = odd
    headers = {} if header is None else {"Inference-Header-Content-Length": header}
    answer = server.inference.post("/v2/models/odd/infer", content=body, headers=headers)

    assert answer.status_code in (200, 400, 413, 504), (body, answer.text)
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]


@given(odd_messages("odd"))
@ANY
def test_no_message_is_the_servers_failure(speaker, body):
    """What is no request is the client's fault, in words; never INTERNAL (F11, F70)."""
    call = speaker.tensors.ModelInfer.future(body)

    assert call.code().name in ("OK", *REFUSALS), body
    assert call.details() or call.code() == grpc.StatusCode.OK


def test_it_still_serves(speaker, server, odd_worker):
    assert worker_of(server) == odd_worker
    assert by_v2_json(speaker, "left", ["still"]).rows == ["left|still"]
