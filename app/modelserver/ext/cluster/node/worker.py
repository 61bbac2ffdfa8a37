"""Entry point of a worker on a node: ``python -m modelserver.ext.cluster.node.worker AGENT_FD AGENT_PID``.

It is an ordinary worker, except that it connects to its server by itself, with a ticket that its agent hands
over on ``AGENT_FD``, so that nobody else sees it and nothing stands between server and worker.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
from typing import TYPE_CHECKING

from modelserver.engine.wire.arena import receive_with, send_with
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.runtime import serve_parent
from modelserver.ext.cluster.greeting import Invitation
from modelserver.ext.cluster.node.dial import SecureConnection, dial

if TYPE_CHECKING:
    from modelserver.engine.wire.arena import Arena

_MAX_INVITATION = 1 << 16


def main() -> None:
    """Runs a worker for the agent whose process id is the second argument."""
    serve_parent(int(sys.argv[2]), lambda: connect_for(int(sys.argv[1])))


def connect_for(agent_socket: int) -> ServerChannel:
    """The channel to the server that the agent's invitation names."""
    with socket.socket(fileno=agent_socket) as agent:
        invitation, memory = receive_invitation(agent)
    return connect(invitation, memory)


def hand_over(worker: socket.socket, invitation: Invitation, memory: Arena | None) -> None:
    """The agent's side: sends the invitation, and the memory beside it. Raises OSError."""
    send_with(worker, invitation.text().encode(), memory)


def receive_invitation(agent: socket.socket) -> tuple[Invitation, Arena | None]:
    """Receives the invitation and memory that :func:`hand_over` sends."""
    data, memory = receive_with(agent, _MAX_INVITATION)
    return Invitation.parse(data.decode()), memory


def connect(invitation: Invitation, memory: Arena | None) -> ServerChannel:
    """The channel to the server; on the server's own machine, large rows go through the memory."""
    plain = dial(invitation)
    secure = SecureConnection(plain) if isinstance(plain, ssl.SSLSocket) else None
    channel = ServerChannel(secure or plain)
    channel.use(memory, shared=plain.family == socket.AF_UNIX)
    return channel


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
