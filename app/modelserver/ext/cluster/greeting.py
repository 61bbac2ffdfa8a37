"""How a connection to the workers' address begins: each side proves that it knows the secret of a ticket.

    server: magic, version, nonce
    node:   magic, version, ticket, nonce, proof
    server: proof

A ticket is for one connection. The secret itself is never sent over the connection; whoever asks with an
unknown ticket learns nothing. The node checks the server's proof, because it will run what the server sends.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

import msgspec

MAGIC = b"msrv"
# Of the greeting alone. What follows is between equal versions of the product, see `Present`.
VERSION = 1
NONCE = 32
CHALLENGE = struct.Struct("<4sB32s")
RESPONSE = struct.Struct("<4sB16s32s32s")
CONFIRMATION = hashlib.sha256().digest_size

_SERVER, _NODE = b"modelserver server", b"modelserver node"


class GreetingError(ConnectionError):
    """The other side is not who it should be."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed for one connection to a server.

    ``path`` is a socket of the same server on its own machine. ``certificate``: the only one that the server
    may show, PEM; empty: the connection is not encrypted.
    """

    host: str
    port: int
    ticket: bytes
    secret: bytes
    certificate: str = ""
    path: str = ""

    def __repr__(self) -> str:
        """Without the secret, which must not get into a log."""
        return f"Invitation({self.host}:{self.port})"

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """The opposite of :meth:`text`. Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


def invite(host: str, port: int, *, certificate: str = "", path: str = "") -> Invitation:
    """A new invitation, with a ticket of its own."""
    return Invitation(
        host=host,
        port=port,
        ticket=secrets.token_bytes(16),
        secret=secrets.token_bytes(32),
        certificate=certificate,
        path=path,
    )


def challenge() -> tuple[bytes, bytes]:
    """What a server says first, and the nonce in it."""
    nonce = secrets.token_bytes(NONCE)
    return CHALLENGE.pack(MAGIC, VERSION, nonce), nonce


def respond(invitation: Invitation, challenged: bytes) -> tuple[bytes, bytes]:
    """The node's response to a challenge, and the confirmation that it must get. Raises GreetingError."""
    magic, version, server_nonce = CHALLENGE.unpack(challenged)
    if magic != MAGIC:
        raise GreetingError("no modelserver answers there")
    if version != VERSION:
        raise GreetingError(f"the server greets by version {version}, this machine by {VERSION}")
    nonce = secrets.token_bytes(NONCE)
    ticket, secret = invitation.ticket, invitation.secret
    proof = _proof(_NODE, ticket, secret, server_nonce, nonce)
    response = RESPONSE.pack(MAGIC, VERSION, ticket, nonce, proof)
    return response, _proof(_SERVER, ticket, secret, server_nonce, nonce)


def named_ticket(response: bytes) -> bytes:
    """The ticket that a response names. Raises GreetingError if it is no response."""
    if len(response) != RESPONSE.size:
        raise GreetingError("more came than a greeting")
    magic, version, ticket, _, _ = RESPONSE.unpack(response)
    if magic != MAGIC:
        raise GreetingError("something else than a worker or its agent connected")
    if version != VERSION:
        raise GreetingError(f"a machine greets by version {version}, this server by {VERSION}")
    return bytes(ticket)


def confirm(invitation: Invitation, nonce: bytes, response: bytes) -> bytes:
    """The server's confirmation for a response to the challenge with ``nonce``. Raises GreetingError."""
    _, _, ticket, node_nonce, proof = RESPONSE.unpack(response)
    if not hmac.compare_digest(proof, _proof(_NODE, ticket, invitation.secret, nonce, node_nonce)):
        raise GreetingError("a connection could not prove that it has the ticket it names")
    return _proof(_SERVER, ticket, invitation.secret, nonce, node_nonce)


def _proof(side: bytes, ticket: bytes, secret: bytes, server_nonce: bytes, node_nonce: bytes) -> bytes:
    return hmac.new(secret, side + ticket + server_nonce + node_nonce, hashlib.sha256).digest()
