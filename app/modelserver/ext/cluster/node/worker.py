"""A worker on a node: ``python -m modelserver.ext.cluster.node.worker AGENT_FD AGENT_PID``.

It is an ordinary worker, except that it connects to its server by itself, with a ticket that its agent sends
on ``AGENT_FD``, so that nobody else sees it and nothing stands between server and worker.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys

from modelserver.engine.worker.runtime import run_worker
from modelserver.ext.cluster.greeting import Invitation
from modelserver.ext.cluster.node.dial import SecureConnection, dial


def connect(invitation: bytes) -> socket.socket | SecureConnection:
    """The connection to the server that the text of an invitation names."""
    connection = dial(Invitation.parse(invitation.decode()))
    return SecureConnection(connection) if isinstance(connection, ssl.SSLSocket) else connection


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_worker(int(sys.argv[1]), int(sys.argv[2]), connect)
