import struct

import pytest

from modelserver.engine.wire.arena import ProtocolError
from modelserver.ext.cluster import messages as wire
from modelserver.ext.cluster.greeting import invite

_INVITATION = invite("h", 1, certificate="PEM", path="/p")
_NEEDS = "own.txt", True, "pip"
_START = wire.Start(("m", "1"), None, "ab", 2, {"A": "é"}, "S", 3, _NEEDS, _INVITATION, 5.0, {"B": b"yaml"})
_TO_AGENT = [_START, wire.Alive(3), wire.Recall(4), wire.Kill(), wire.ArchiveTicket(_INVITATION)]
_FROM_AGENT = [
    wire.Present("1", "3.11", "n", "h"),
    wire.Heard(3),
    wire.WantArchive(5),
    wire.StartProgress("installing"),
    wire.WorkerStarted(7, "/m", ""),
    wire.StartRefused("no"),
    wire.WorkerOutput(True, b"\xff\n"),
    wire.Condition(1, "N/A"),
    wire.TakenBack(1, 2),
    wire.WorkerEnded(-9, None, None),
]


def _read(decoder, data):
    """The messages in bytes that arrive in two parts."""
    reader = wire.MessageReader(decoder)
    return [*reader.feed(data[:70]), *reader.feed(data[70:])]


def test_each_side_reads_what_the_other_may_say():
    to_agent = b"".join(map(wire.encode, _TO_AGENT))
    assert _read(wire.to_agent_decoder, to_agent) == _TO_AGENT
    from_agent = b"".join(map(wire.encode, _FROM_AGENT))
    assert _read(wire.from_agent_decoder, from_agent) == _FROM_AGENT

    for decoder, messages in ((wire.from_agent_decoder, _TO_AGENT), (wire.to_agent_decoder, _FROM_AGENT)):
        for message in messages:
            with pytest.raises(ProtocolError, match="no message"):
                _read(decoder, wire.encode(message))


def test_a_long_message_is_refused_by_its_announcement():
    for rest, size in ((wire.MAX_MESSAGE + 5, wire.MAX_MESSAGE + 1), (0xFFFFFFFF, 0xFFFFFFFB), (20, 10)):
        with pytest.raises(ProtocolError, match=f"no message: {rest} bytes announced, then {size}"):
            _read(wire.from_agent_decoder, struct.pack("<II", rest, size))


def test_invitations_in_messages_are_not_printed():
    """What a message prints as has neither ticket nor secret."""
    for message in (_START, wire.ArchiveTicket(_INVITATION)):
        assert "Invitation(h:1)" in repr(message)
        assert repr(_INVITATION.secret) not in repr(message)
        assert repr(_INVITATION.ticket) not in repr(message)
