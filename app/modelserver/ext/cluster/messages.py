"""The messages between the server and the agent of a worker on another machine."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from modelserver.engine.wire.arena import ProtocolError
from modelserver.ext.cluster.greeting import Invitation

# Bytes of a message's frame in either direction.
MAX_MESSAGE = 4 << 20
# The version that both sides' Python must have.
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
# What stands before a message: the bytes that follow its first half, and those that follow all of it.
_PREFIX = struct.Struct("<II")
MessageT = TypeVar("MessageT")


class Present(msgspec.Struct, frozen=True, array_like=True, tag="present"):
    """Agent to server, first: which versions of modelserver and Python (major.minor) run on which machine.

    ``devices`` are the GPUs that the agent was given there, as in CUDA_VISIBLE_DEVICES; empty: all, or none.
    """

    version: str
    python: str
    node: str
    host: str
    devices: str = ""


# The model's requirements file, whether it gets a virtual environment, and the module that installs both.
Needs: TypeAlias = tuple[str, bool, str]


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Server to agent, once: the worker to start.

    ``model`` is its model's name and version, ``gpu_id`` its GPU, if it has one. The model's files are
    ``size`` bytes with the SHA-256 ``digest`` (hexadecimal). ``environment`` are variables beside the
    machine's own, ``hidden`` the pattern of those that the worker must not see, ``threads`` the number for
    numeric libraries. ``packages`` are installed first.
    ``worker`` is the invitation of the worker's own connection. ``lease``: seconds without a word from the
    server after which the worker is ended. ``files`` are contents of files, by the variable that names each.
    """

    model: tuple[str, str]
    gpu_id: int | None
    digest: str
    size: int
    environment: dict[str, str]
    hidden: str
    threads: int
    packages: Needs
    worker: Invitation
    lease: float
    files: dict[str, bytes]


class Alive(msgspec.Struct, frozen=True, array_like=True, tag="alive"):
    """Server to agent, often: the server is there. ``number`` counts these."""

    number: int


class Meet(msgspec.Struct, frozen=True, array_like=True, tag="meet"):
    """Server to agent: where could the ranks of a worker meet on this machine?

    At a free port of those from ``first`` on, better not one of the first ``assigned``; at any if that is 0.
    """

    first: int
    assigned: int


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Server to agent: take back the batches below ``below`` that the worker has not begun."""

    below: int


class Kill(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """Server to agent: end the worker without asking."""


class ArchiveTicket(msgspec.Struct, frozen=True, array_like=True, tag="archive_ticket"):
    """Server to agent: the answer to :class:`WantArchive`."""

    invitation: Invitation


class Heard(msgspec.Struct, frozen=True, array_like=True, tag="heard"):
    """Agent to server, at once: it has read :class:`Alive` with this number."""

    number: int


class Meeting(msgspec.Struct, frozen=True, array_like=True, tag="meeting"):
    """Agent to server: the answer to :class:`Meet`, with this machine's address as its way to the server."""

    host: str
    port: int


class WantArchive(msgspec.Struct, frozen=True, array_like=True, tag="want_archive"):
    """Agent to server: a connection for the bytes of the model's files from ``offset``, please."""

    offset: int


class StartProgress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Agent to server: a step of what comes before the start, as text.

    With a ``source``, it is a line that this has printed for the model, such as pip.
    """

    text: str
    source: str = ""


class WorkerStarted(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """Agent to server: the worker's process runs; its model's files are in ``model_dir``.

    ``memory``: where the arena is found on the agent's machine (see :mod:`modelserver.engine.wire.arena`),
    empty if there is none, so that no batch can be taken back.
    """

    pid: int
    model_dir: str
    memory: str


class StartRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Agent to server: the worker cannot be started, for this reason; the agent ends.

    ``status``: what clients are told if that is the model's fault; 0: it is the machine's.
    """

    reason: str
    status: int = 0


class WorkerOutput(msgspec.Struct, frozen=True, array_like=True, tag="output"):
    """Agent to server: what the worker printed to standard output, or to standard error."""

    is_error: bool
    data: bytes


class Condition(msgspec.Struct, frozen=True, array_like=True, tag="condition"):
    """Agent to server, every few seconds: bytes that the worker uses, and its GPUs.

    ``of_family``: bytes also of its descendants.
    """

    resident: int
    gpu: str
    of_family: int = 0


class TakenBack(msgspec.Struct, frozen=True, array_like=True, tag="taken_back"):
    """Agent to server: of the batches below ``below``, the worker had begun those below ``started``."""

    started: int
    below: int


class WorkerEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Agent to server, last: how the worker ended, and how many batches it had begun.

    ``code`` is negative for a signal; ``for_memory``: whether the system killed it for lack of memory, None
    if unknown.
    """

    code: int | None
    started: int | None
    for_memory: bool | None


ToAgent: TypeAlias = Start | Alive | Meet | Recall | Kill | ArchiveTicket
FromAgent: TypeAlias = (
    Present
    | Heard
    | Meeting
    | WantArchive
    | StartProgress
    | WorkerStarted
    | StartRefused
    | WorkerOutput
    | Condition
    | TakenBack
    | WorkerEnded
)

to_agent_decoder: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
from_agent_decoder: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)


def encode(message: ToAgent | FromAgent) -> bytes:
    """The message with its size."""
    data = msgspec.msgpack.encode(message)
    return _PREFIX.pack(4 + len(data), len(data)) + data


class MessageReader(Generic[MessageT]):
    """Turns received bytes into messages; keeps what is incomplete."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[MessageT]:
        """Yields each complete message. Raises ProtocolError for anything else."""
        self._pending += data
        while len(self._pending) >= _PREFIX.size:
            rest, size = _PREFIX.unpack_from(self._pending)
            if rest != size + 4 or size > MAX_MESSAGE:
                raise ProtocolError(f"no message: {rest} bytes announced, then {size}")
            end = _PREFIX.size + size
            if len(self._pending) < end:
                return
            encoded = bytes(self._pending[_PREFIX.size : end])
            del self._pending[:end]
            try:
                yield self._decoder.decode(encoded)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"no message: {error}") from error
