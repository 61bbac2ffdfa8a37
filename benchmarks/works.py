"""What the comparison asks of every server: the work, its batch, its window, its clients."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["noop", "mlp", "resnet"]
NOOP_BODY = bytes(range(64))
MULTIPART = "multipart/form-data; boundary=benchmark"
CONNECTIONS = (1, 8, 32, 128)


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the comparison: ``delay_ms`` is the window of servers that have one.

    ``longer`` times the duration of a measurement; ``half_load`` asks for the latency at half of each
    server's own largest rate too. ``alone`` is about starting and memory with so many ``workers``: one server
    after another, nothing else runs, and a short load at ``connections`` comes before memory is read.
    """

    name: str
    title: str
    kind: Kind
    batch: int
    delay_ms: int
    connections: tuple[int, ...] = CONNECTIONS
    longer: float = 1.0
    half_load: bool = False
    alone: bool = False
    workers: int = 1

    @property
    def whole_batches(self) -> bool:
        """Whether batches are so long that whole ones must be counted (our own client only)."""
        return self.kind == "resnet"


_RESNET: tuple[Kind, int, int] = ("resnet", 8, 50)
WORKS = {
    work.name: work
    for work in (
        Work("start", "Start and memory, no-op", "noop", 1, 0, (32,), alone=True),
        Work("noop_b1", "No-op, batch 1", "noop", 1, 0),
        Work("noop_b32", "No-op, batch 32", "noop", 32, 5),
        Work("mlp_b32", "MLP 64-128-10 over JSON, batch 32", "mlp", 32, 5, half_load=True),
        Work("lone_noop", "One sequential client, no-op, batch 8", "noop", 8, 50, (1,)),
        Work("lone_mlp", "One sequential client, MLP, batch 8", "mlp", 8, 50, (1,)),
        Work(
            "kserve5", "Five clients, MLP, batch 32 (KServe's experiment)", "mlp", 32, 500, (5,), longer=2.5
        ),
        Work("resnet_b8", "ResNet over JPEG, batch 8", *_RESNET, (8, 16, 32), longer=3.0),
        Work("workers_1", "ResNet, one worker: start and memory", *_RESNET, (8,), alone=True),
        Work("workers_4", "ResNet, four workers: start and memory", *_RESNET, (32,), alone=True, workers=4),
    )
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is posted, and where."""

    path: str
    body: bytes
    content_type: str


def row(seed: int = 0) -> list[float]:
    """The 64 numbers of a request to the MLP."""
    chance = random.Random(seed)
    return [round(chance.uniform(-1, 1), 4) for _ in range(64)]


def raw_body(kind: Kind, picture: bytes) -> tuple[bytes, str]:
    """Body and content type as most servers take them."""
    if kind == "noop":
        return NOOP_BODY, "application/octet-stream"
    if kind == "mlp":
        return json.dumps({"instances": [row()]}).encode(), "application/json"
    return picture, "image/jpeg"


def form_body(field: str, picture: bytes) -> tuple[bytes, str]:
    """A picture as a form's only field."""
    head = f'--benchmark\r\nContent-Disposition: form-data; name="{field}"; filename="picture.jpg"\r\n'
    return (
        head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + picture + b"\r\n--benchmark--\r\n",
        MULTIPART,
    )


def json_body(kind: Kind, noop: object) -> tuple[bytes, str]:
    """A JSON body for servers that take no other; ``noop`` is what they are sent for nothing."""
    return json.dumps({"instances": [row()]} if kind == "mlp" else noop).encode(), "application/json"
