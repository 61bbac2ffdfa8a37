"""The messages between the server and a worker.

One frame is one message, followed for :class:`Predict`, :class:`Parts` and :class:`Result` by the raw bytes
of its rows:

    u32 size of the rest | u32 size of the head | head (msgpack) | bytes of row 0 | bytes of row 1 | ...

The head contains the size of each row, so bodies and answers are sent without being encoded, escaped or
copied into another object. Nothing is pickled, as workers run user code.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Any, TypeAlias

import msgspec

PREFIX = struct.Struct("<II")
MAX_FRAME = (1 << 32) - 1

# What a row's bytes are, and how its answer is encoded.
BODY = 0  # the body of a /predictions request (reference 7.1); the answer is encoded by reference 7.4
INSTANCE = 1  # one JSON value of a V1 `instances` list; the answer is one JSON value
DESCRIBE = 2  # no bytes: the handler describes itself (reference 5.4); the answer is as for a body
TENSORS = 3  # a row of V2 tensors, as modelserver.engine.tensors.rows splits and joins them
FIELDS = 4  # msgpack of {name: bytes}, which the handler gets unchanged; the answer is as for a body

# An endpoint of handlers that answer requests to any path: those of ASGI applications.
ANY_PATH = "*"

# How a worker processes batches: one after the other, or (reference 8.10, 8.11) many at a time.
CONTINUOUS = "continuous"
ASYNC = "async"

GPU_BROKEN = "The worker's GPU cannot be used any more, and the worker is restarted"

METRICS_CONFIG = "MODELSERVER_METRICS_CONFIG"
"""The environment variable of workers that names the file with the metrics that handlers may look up."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


def sendable(value: object) -> str:
    """``value`` as text that can be encoded; surrogates become question marks."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def without_escapes(text: str) -> str:
    """``text`` without escape sequences of terminals, such as colours."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


class SequenceHeaders(msgspec.Struct, frozen=True, array_like=True):
    """The names of the headers about sequences (``ts_header_key_sequence_*``, reference 3.3)."""

    id: str = "ts_request_sequence_id"
    start: str = "ts_request_sequence_start"
    end: str = "ts_request_sequence_end"


class OutputSpec(msgspec.Struct, frozen=True, array_like=True):
    """An output of the model, as in its signature: ``shape`` begins with the rows, -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Side(msgspec.Struct, frozen=True, array_like=True):
    """What a handler's annotations say about its rows, or about its answers.

    ``tensors`` are those of the V2 protocol; ``media`` is the content type of a body. ``schema`` is a JSON
    schema, empty if nothing is known, and ``schemas`` those that it refers to, by name.
    """

    tensors: list[OutputSpec] = []
    media: str = ""
    schema: dict[str, Any] = {}
    schemas: dict[str, dict[str, Any]] = {}


class Annotations(msgspec.Struct, frozen=True, array_like=True):
    """What a handler's annotations say."""

    inputs: Side = Side()
    outputs: Side = Side()


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Server to worker, once: what to load and how to treat requests.

    The worker has ``ranks`` processes, of which this is number ``rank``. ``outputs`` is empty if the model
    does not declare any. ``expose``: clients are shown errors of the handler. ``types``: text and bytes in
    answers have a content type. ``tracer``: the module that exports spans of the handler, if any.
    ``gpu_required``: with a GPU assigned, the model must not be on the CPU.
    """

    model_name: str
    model_version: str
    model_dir: str
    handler: str
    batch_size: int
    gpu_id: int | None = None
    envelope: str = ""
    config_file: str = ""
    decode_input_request: bool = True
    limit_max_image_pixels: bool = True
    max_response_size: int = 6553500
    server_version: str = ""
    isolate: bool = True
    mode: str = ""
    sequence_headers: SequenceHeaders = SequenceHeaders()
    rank: int = 0
    ranks: int = 1
    outputs: list[OutputSpec] = []
    expose: bool = False
    tracer: str = ""
    types: bool = True
    gpu_required: bool = False


# Its values refer to nothing else, so the garbage collector need not look at it.
class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One instance. ``size``: its bytes in the frame's tail.

    ``headers`` is msgpack of ``[[name, value], ...]`` as received: most handlers never read them, so most
    are never decoded.
    ``extra`` is JSON: the request's other top-level fields (V1 ``parameters`` and the like), or empty; for
    TENSORS, their form.
    """

    request_id: str
    size: Size
    kind: int = BODY
    content_type: str = ""
    headers: msgspec.Raw = msgspec.Raw(b"\x90")
    query: list[tuple[str, str]] | None = None
    url_path: str = ""
    explain: bool = False
    extra: bytes = b""

    @property
    def is_tensors(self) -> bool:
        """Whether its bytes, and those of its answer, are tensors."""
        return self.kind == TENSORS


class Predict(msgspec.Struct, frozen=True, array_like=True, tag="predict"):
    """Server to worker: one batch, in order."""

    sequence: int
    rows: list[Row]


class TracedPredict(Predict, frozen=True, array_like=True, tag="traced"):
    """Server to worker: a batch with a traced request. ``trace``: the handler's span, as in `traceparent`."""

    trace: str


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """Server to worker: these rows of batch ``sequence`` are no longer needed."""

    sequence: int
    rows: list[Size]


class Proceed(msgspec.Struct, frozen=True, array_like=True, tag="proceed"):
    """Server to worker: clients have received the :class:`Parts` sent with ``wait``."""

    sequence: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Server to worker: finish the batches sent so far, and exit."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Server to an idle worker: are you there?"""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Worker to server: yes."""


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="returned"):
    """Worker to server: batch ``sequence`` was taken back just before it began; it was not run."""

    sequence: int


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag="recalled"):
    """A worker's machine to server: of the batches below ``below``, it had begun those below ``started``.

    The others will not begin there.
    """

    started: int
    below: int


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """Worker to server: the handler is initialised, which took ``seconds``.

    ``splits`` means that the handler takes instances (a built-in one), so V1 bodies are always split.
    ``warnings`` are for the client that registers the model. ``pipelined``: it prepares a batch while it
    computes another. ``precision``: which was asked for and is used, and why; empty if there is no choice.
    ``annotations``: what those of the handler say, None if it has none. ``device``: where the model is, such
    as ``cpu`` or ``cuda:1``; empty if the handler does not say. ``concurrency``: how many requests the
    handler processes at a time, each with a call of its own; 0: one batch. ``endpoints``: the endpoints of
    OpenAI's API that it serves, and whether each of their inputs is a row of its own; with :data:`ANY_PATH`
    it answers any request, and its rows come with what ASGI calls a scope. ``adapters``: the names of those
    that were loaded with the model.
    """

    splits: bool = False
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    pipelined: bool = False
    precision: dict[str, str] = {}
    annotations: Annotations | None = None
    device: str = ""
    concurrency: int = 0
    endpoints: dict[str, bool] = {}
    adapters: tuple[str, ...] = ()


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag="load_failed"):
    """Worker to server: the handler could not be loaded. ``permanent``: retrying cannot help.

    ``variables``: the model is to be loaded in another process, whose environment has these.
    """

    message: str
    status: int = 500
    permanent: bool = False
    variables: dict[str, str] = {}


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """Worker to server: its GPU cannot be used any more, for this ``reason``.

    It begins no more batches: it answers the running one, and exits. Unless ``of_gpu``, it exits at once.
    """

    reason: str
    of_gpu: bool = True


class Fitting(msgspec.Struct, frozen=True, array_like=True, tag="fitting"):
    """Worker to server: it calls the handler with at most ``rows``, as more have exhausted the GPU's memory.

    0: with any number again.
    """

    rows: Size


# Its values refer to nothing else, so the garbage collector need not look at it.
class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row's answer: ``size`` bytes of the frame's tail.

    With ``failed`` the bytes are an error message in UTF-8, ``error_type`` its type, and ``cause`` begins
    with the class of the handler's exception, if there was one. ``parameters`` is a JSON object, or empty:
    what the handler adds to the outputs of TENSORS, or reports of a language model's answer.
    """

    size: Size
    status: int = 200
    content_type: str = ""
    phrase: str = ""
    headers: list[tuple[str, str]] | None = None
    failed: bool = False
    error_type: str = "InternalServerException"
    parameters: bytes = b""
    cause: str = ""


class Parts(msgspec.Struct, frozen=True, array_like=True, tag="parts"):
    """Worker to server, before their results: parts to send now for these rows of these batches.

    Status, headers and content type count in a row's first part only. After parts with ``wait`` the worker
    sends no more before the server's :class:`Proceed`.
    """

    sequences: list[int]
    rows: list[Size]
    answers: list[Answer]
    wait: bool = False


class Measurement(msgspec.Struct, frozen=True, array_like=True):
    """One metric a handler emitted."""

    name: str
    value: float
    unit: str
    kind: str
    dimensions: list[tuple[str, str]]
    request_id: str = ""


class Result(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """Worker to server: the answers of batch ``sequence``, one per row, in order. Times in seconds."""

    sequence: int
    answers: list[Answer]
    handler_time: float
    phases: tuple[float, float, float] = (0.0, 0.0, 0.0)
    calls: int = 1
    metrics: list[Measurement] | None = None


ToWorker: TypeAlias = Load | Predict | TracedPredict | Cancelled | Proceed | Stop | Ping
ToServer: TypeAlias = Loaded | LoadFailed | Parts | Result | Returned | Pong | Recalled | Broken | Fitting
