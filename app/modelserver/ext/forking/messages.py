"""The messages between the server and its spawner: one per packet, along with descriptors."""

from __future__ import annotations

import array
import socket
from typing import TypeAlias

import msgspec

# Descriptors with a Spawn: the worker's socket, its standard output and error, a pipe whose end ends it.
SPAWN_DESCRIPTORS = 4
_MAX_PACKET = 1 << 20
# Programs that a process starts must not inherit these.
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Server to spawner: fork a worker.

    ``modules`` are imported first, ``handler`` too if it names a built-in one. ``threads`` is the number for
    numeric libraries.
    """

    model_dir: str
    handler: str
    modules: list[str]
    environment: dict[str, str]
    threads: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Server to spawner: import what a worker of this model needs, as before a :class:`Spawn`."""

    model_dir: str
    handler: str
    modules: list[str]


class ModulesImported(msgspec.Struct, frozen=True, array_like=True, tag="prepared"):
    """Spawner to server: it is imported."""


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """Spawner to server: the worker runs. Its pidfd is sent along."""

    pid: int


class ForkRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Spawner to server: this worker must be spawned instead."""

    reason: str


class ChildEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Spawner to server: a worker ended with ``code``; negative: by that signal."""

    pid: int
    code: int


ToSpawner: TypeAlias = Spawn | Prepare
FromSpawner: TypeAlias = ModulesImported | Spawned | ForkRefused | ChildEnded

_encode = msgspec.msgpack.Encoder().encode
_to_spawner: msgspec.msgpack.Decoder[ToSpawner] = msgspec.msgpack.Decoder(ToSpawner)
_from_spawner: msgspec.msgpack.Decoder[FromSpawner] = msgspec.msgpack.Decoder(FromSpawner)


def send(
    connection: socket.socket, message: ToSpawner | FromSpawner, descriptors: list[int] | None = None
) -> None:
    """Sends one packet, whole or not at all. Raises OSError."""
    socket.send_fds(connection, [_encode(message)], descriptors or [])


def receive_request(connection: socket.socket) -> tuple[ToSpawner, list[int]] | None:
    """The next request; None when the server has closed, with or without having read all reports.

    Raises OSError.
    """
    try:
        data, descriptors = _receive(connection, SPAWN_DESCRIPTORS)
    except ConnectionResetError:
        return None
    return (_to_spawner.decode(data), descriptors) if data else None


def receive_report(connection: socket.socket) -> tuple[FromSpawner, list[int]] | None:
    """The next report; None when the spawner has ended. Raises OSError."""
    data, descriptors = _receive(connection, 1)
    return (_from_spawner.decode(data), descriptors) if data else None


def _receive(connection: socket.socket, most: int) -> tuple[bytes, list[int]]:
    # Not socket.recv_fds, which ignores its flags (Python 3.11).
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(most * descriptors.itemsize)
    data, ancillary, _, _ = connection.recvmsg(_MAX_PACKET, room, _FLAGS)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)
