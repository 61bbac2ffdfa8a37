"""Clients that ask with marked requests by all protocols, of which some crash, and check each answer."""

import asyncio
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import uvloop
from tests.campaign.callers import REQUESTS, Answer, Caller, Malformed, answer_rows
from tests.e2e.grpc_client import INFERENCE, channel, oip, predict, stub
from tests.e2e.serving import Server

ANSWER_SECONDS = 60.0
# So many of 100 requests are broken off: a client sends them in part or whole and does not wait.
BROKEN_OFF = 2
# Seconds that a client waits after a response with Retry-After.
BACK_OFF = 0.02
CODES = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 503}
# TorchServe's service has one code for most failures: this one is recognised by its text.
NO_WORKER = "has no worker to serve"


class Tally:
    """What came of the requests to the models that answer ``MODEL|row|call``; threads share it.

    ``causes``: why a model may answer with which status instead, by model and status. ``answered`` counts by
    kind of request, ``failed`` by model and status; ``slowest`` is the longest wait for an answer in seconds.
    """

    def __init__(self, causes: Mapping[tuple[str, int], str]) -> None:
        self.models = sorted({model for model, _ in causes})
        self.answered: Counter[str] = Counter()
        self.failed: Counter[tuple[str, int]] = Counter()
        self.broken_off = 0
        self.slowest = 0.0
        self.wrong: list[str] = []
        self._causes = causes
        self._lock = threading.Lock()

    def right(self, kind: str) -> None:
        with self._lock:
            self.answered[kind] += 1

    def other(self, model: str, status: int, text: object) -> None:
        with self._lock:
            if self.explains(model, status):
                self.failed[model, status] += 1
            else:
                self.wrong.append(f"{model} answered {status}: {str(text)[:300]}")

    def explains(self, model: str, status: int) -> bool:
        """Whether the model may answer with this status now."""
        return (model, status) in self._causes

    def odd(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def took(self, since: float) -> None:
        with self._lock:
            self.slowest = max(self.slowest, time.monotonic() - since)


def ask_by_http(
    server: Server, tally: Tally, clients: int, going: Callable[[], bool], pause: float = 0.0
) -> None:
    """So many HTTP clients, each with ``pause`` seconds between its requests, until they are to end."""

    async def crowd() -> None:
        port = server.port_of("inference")
        await asyncio.gather(*(call_by_http(port, client, tally, going, pause) for client in range(clients)))

    uvloop.run(crowd())


async def call_by_http(port: int, client: int, tally: Tally, going: Callable[[], bool], pause: float) -> None:
    """One client: sends requests, and now and then crashes and comes back."""
    chance, name = random.Random(client), uuid.uuid4().hex[:8]
    caller = await Caller.connect(port)
    number = 0
    while going():
        number += 1
        make, model = chance.choice(REQUESTS), chance.choice(tally.models)
        rows = 1 if make is REQUESTS[0] else chance.randint(1, 4)
        marks = [f"{client}-{name}-{number}-{row}" + "x" * chance.choice((0, 0, 3000)) for row in range(rows)]
        request = make(model, marks)
        if chance.randrange(100) < BROKEN_OFF:
            tally.broken_off += 1
            caller.write(request[: chance.randint(1, len(request))])
            await asyncio.sleep(chance.choice((0.0, 0.001)))
            caller.abort()
            caller = await Caller.connect(port)
            continue
        began = time.monotonic()
        try:
            answer = await caller.ask(request, ANSWER_SECONDS)
        except (ConnectionError, asyncio.TimeoutError, Malformed) as error:
            tally.odd(f"{make.__name__} to {model}: {error!r}")
            caller.abort()
            caller = await Caller.connect(port)
            continue
        tally.took(began)
        check(tally, make.__name__, model, marks, answer)
        if caller.unasked:
            tally.odd(f"bytes that nobody asked for after {make.__name__}: {caller.unasked[:100]!r}")
        if answer.closes or caller.unasked:
            caller.abort()
            caller = await Caller.connect(port)
        if wait := BACK_OFF if answer.status == 503 else pause:
            await asyncio.sleep(wait)
    caller.abort()


def check(tally: Tally, kind: str, model: str, marks: list[str], answer: Answer) -> None:
    if answer.status != 200:
        tally.other(model, answer.status, answer.body)
        if answer.status == 503 and not answer.retry_after:
            tally.odd(f"{kind} to {model}: 503 without Retry-After: {answer.body[:200]!r}")
        return
    try:
        rows = answer_rows(kind, answer.body)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        tally.odd(f"{kind}: {error!r} in {answer.body[:200]!r}")
        return
    if rows == [f"{model}|{mark}" for mark in marks]:
        tally.right(kind)
    else:
        tally.odd(f"{kind} to {model}: asked {marks}, told {rows}"[:500])


def ask_by_grpc(
    server: Server, tally: Tally, client: int, going: Callable[[], bool], pause: float = 0.0
) -> None:
    """One gRPC client: TorchServe's service and the Open Inference one in turns; some calls are cancelled."""
    chance, name = random.Random(client), uuid.uuid4().hex[:8]
    with channel(server, "inference") as to:
        predictions = stub(to, f"{INFERENCE}InferenceAPIsService").Predictions
        v2 = stub(to, "inference.GRPCInferenceService").ModelInfer
        number = 0
        while going():
            number += 1
            time.sleep(pause)
            mark, model = f"grpc-{client}-{name}-{number}", chance.choice(tally.models)
            method: Any = predictions
            message = predict(model, data=mark.encode())
            if number % 2:
                contents = {"bytes_contents": [mark.encode()]}
                tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "contents": contents}
                method, message = v2, oip("ModelInferRequest", model_name=model, inputs=[tensor])
            if chance.randrange(100) < BROKEN_OFF:
                method.future(message, timeout=ANSWER_SECONDS).cancel()
                tally.broken_off += 1
                continue
            began = time.monotonic()
            try:
                answer = method(message, timeout=ANSWER_SECONDS)
            except grpc.RpcError as error:
                status = CODES.get(error.code().name, 0)
                if status == 500 and NO_WORKER in str(error.details()):
                    status = 503
                tally.other(model, status, f"{error.code()}: {error.details()}")
                time.sleep(BACK_OFF if status == 503 else 0.0)
                continue
            finally:
                tally.took(began)
            rows = answer.prediction if method is predictions else v2_row(answer)
            if rows.decode().rpartition("|")[0] == f"{model}|{mark}":
                tally.right("by_grpc" if method is predictions else "by_v2_grpc")
            else:
                tally.odd(f"gRPC to {model}: asked {mark}, told {rows!r}"[:500])


def v2_row(answer: Any) -> bytes:
    """The one row of a V2 response, typed or raw."""
    raw = answer.raw_output_contents
    return raw[0][4:] if raw else answer.outputs[0].contents.bytes_contents[0]
