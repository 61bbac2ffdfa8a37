import msgspec
import pytest

from modelserver.ext.cluster.greeting import (
    CHALLENGE,
    MAGIC,
    NONCE,
    RESPONSE,
    VERSION,
    GreetingError,
    Invitation,
    challenge,
    confirm,
    invite,
    named_ticket,
    respond,
)


def test_greeting_proves_the_secret_to_both_sides():
    """The server's confirmation is the one that the node expects, and the secret is in none of the bytes. A
    server that does not know it cannot send the node's own proof back; another secret gives other proofs.
    """
    invitation = invite("h", 1)
    first, nonce = challenge()
    response, expected = respond(invitation, first)
    assert named_ticket(response) == invitation.ticket
    confirmation = confirm(invitation, nonce, response)
    assert confirmation == expected
    assert invitation.secret not in first + response + confirmation

    *_, proof = RESPONSE.unpack(response)
    assert proof != expected

    stolen = msgspec.structs.replace(invitation, secret=bytes(32))
    first, nonce = challenge()
    response, expected = respond(stolen, first)
    with pytest.raises(GreetingError, match="could not prove"):
        confirm(invitation, nonce, response)
    assert confirm(stolen, nonce, response) == expected


def test_every_greeting_differs():
    """Nothing of a greeting can be used again: neither tickets, nor nonces, nor proofs."""
    invitation = invite("h", 1)
    assert invite("h", 1).ticket != invitation.ticket
    assert invite("h", 1).secret != invitation.secret
    first, nonce = challenge()
    again, other_nonce = challenge()
    assert first != again
    response, expected = respond(invitation, first)
    assert respond(invitation, first) != (response, expected)
    with pytest.raises(GreetingError, match="could not prove"):
        confirm(invitation, other_nonce, response)
    assert nonce != other_nonce


@pytest.mark.parametrize("position", [RESPONSE.size - 1, RESPONSE.size - 40, 10])
def test_an_altered_response_proves_nothing(position):
    invitation = invite("h", 1)
    first, nonce = challenge()
    response = bytearray(respond(invitation, first)[0])
    response[position] ^= 1
    with pytest.raises(GreetingError, match="could not prove"):
        confirm(invitation, nonce, bytes(response))


def test_something_else_than_server_or_node_is_recognised():
    invitation = invite("h", 1)
    with pytest.raises(GreetingError, match="no modelserver answers there"):
        respond(invitation, CHALLENGE.pack(b"HTTP", VERSION, bytes(NONCE)))
    with pytest.raises(GreetingError, match=f"greets by version 9, this machine by {VERSION}"):
        respond(invitation, CHALLENGE.pack(MAGIC, 9, bytes(NONCE)))

    with pytest.raises(GreetingError, match="something else"):
        named_ticket(b"GET / HTTP/1.1\r\n".ljust(RESPONSE.size, b"x"))
    with pytest.raises(GreetingError, match=f"greets by version 9, this server by {VERSION}"):
        named_ticket(RESPONSE.pack(MAGIC, 9, bytes(16), bytes(32), bytes(32)))
    response, _ = respond(invite("h", 1), challenge()[0])
    for wrong in (response + b"x", response[:-1], b""):
        with pytest.raises(GreetingError, match="more came than a greeting"):
            named_ticket(wrong)


def test_an_invitation_is_text_for_another_machine_and_shows_no_secret():
    """Neither the representation of an invitation, nor that of what contains it, has ticket or secret."""
    invitation = invite("h", 1, certificate="PEM", path="/run/x.sock")
    assert Invitation.parse(invitation.text()) == invitation
    for wrong in (
        "",
        "{}",
        "[1]",
        invitation.text()[:-3],
        invitation.text().replace('"port":1', '"port":"1"'),
    ):
        with pytest.raises(msgspec.DecodeError) as refused:
            Invitation.parse(wrong)
        assert str(invitation.secret) not in str(refused.value)

    invitation = invite("h", 1)
    for visible in (repr(invitation), str(invitation), repr([invitation]), f"{invitation!s}"):
        assert visible.strip("[]") == "Invitation(h:1)"
