"""What the comparison asks of every server: the work, its batch, its window, its clients."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["noop", "mlp", "resnet"]
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
    """A POST of ``body`` to a path, or a GET where there is none; ``further`` are more headers."""

    path: str
    body: bytes = b""
    content_type: str = ""
    further: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """Content type and further ones."""
        return ({"Content-Type": self.content_type} if self.content_type else {}) | dict(self.further)

    def message(self) -> bytes:
        """The bytes of the POST."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(self.body)}\r\n"
        return f"{head}{lines}\r\n".encode() + self.body


def rows_body() -> tuple[bytes, str]:
    """A request to the MLP, of 64 numbers."""
    chance = random.Random(0)
    row = [round(chance.uniform(-1, 1), 4) for _ in range(64)]
    return json.dumps({"instances": [row]}).encode(), "application/json"


def raw_body(kind: Kind, picture: bytes) -> tuple[bytes, str]:
    """Body and content type as most servers take them."""
    if kind == "noop":
        return bytes(range(64)), "application/octet-stream"
    if kind == "mlp":
        return rows_body()
    return picture, "image/jpeg"


def form_body(picture: bytes) -> tuple[bytes, str]:
    """A picture as a form's only field, ``request``."""
    head = b'--benchmark\r\nContent-Disposition: form-data; name="request"; filename="picture.jpg"\r\n'
    head += b"Content-Type: image/jpeg\r\n\r\n"
    return head + picture + b"\r\n--benchmark--\r\n", "multipart/form-data; boundary=benchmark"
