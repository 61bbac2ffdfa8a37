from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from modelserver.engine.wire.frames import FrameReader, ProtocolError, encode
from modelserver.engine.wire.messages import Load, Recalled
from modelserver.ext.cluster.greeting import invite
from modelserver.ext.cluster.messages import (
    MAX_MESSAGE,
    Alive,
    ArchiveTicket,
    Condition,
    FromAgent,
    Heard,
    Kill,
    Present,
    Recall,
    Start,
    StartProgress,
    StartRefused,
    ToAgent,
    WantArchive,
    WorkerEnded,
    WorkerOutput,
    WorkerStarted,
    from_agent_decoder,
    to_agent_decoder,
)

if TYPE_CHECKING:
    from typing import Any

    import msgspec

_INVITATION = invite("h", 1, certificate="PEM", path="/p")
_START = Start(
    *(
        Load("m", "1", "/m", "h", 1),
        "ab",
        2,
        {"A": "é"},
        "S.*",
        3,
        "requirements.txt",
        True,
        _INVITATION,
        5.0,
    ),
    metrics=b"yaml",
)
_TO_AGENT: list[ToAgent] = [_START, Alive(3), Recall(4), Kill(), ArchiveTicket(_INVITATION)]
_FROM_AGENT: list[FromAgent] = [
    Present("1", "3.11", "n", "h"),
    Heard(3),
    WantArchive(5),
    StartProgress("installing"),
    WorkerStarted(7, "/m", ""),
    StartRefused("no"),
    WorkerOutput(True, b"\xff\n"),
    Condition(1, "N/A"),
    Recalled(1, 2),
    WorkerEnded(-9, None, None),
]


def _read(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> list[object]:
    return [message for message, _ in FrameReader(decoder, MAX_MESSAGE).feed(data)]


def test_each_side_reads_what_the_other_says() -> None:
    """All messages arrive as they were sent."""
    to_agent = b"".join(b"".join(encode(message)) for message in _TO_AGENT)
    assert _read(to_agent_decoder, to_agent) == _TO_AGENT
    from_agent = b"".join(b"".join(encode(message)) for message in _FROM_AGENT)
    assert _read(from_agent_decoder, from_agent) == _FROM_AGENT


def test_no_side_reads_what_the_other_may_not_say() -> None:
    """An agent cannot tell the server to start something, and a server cannot say that a worker ended."""
    for decoder, messages in ((from_agent_decoder, _TO_AGENT), (to_agent_decoder, _FROM_AGENT)):
        for message in messages:
            with pytest.raises(ProtocolError, match="no message"):
                _read(decoder, b"".join(encode(message)))


def test_a_long_message_is_refused_by_its_announcement() -> None:
    """Nothing is kept for a message over the limit, and nothing is waited for."""
    for size in (MAX_MESSAGE + 1, 0xFFFFFFFF):
        reader: FrameReader[FromAgent] = FrameReader(from_agent_decoder, MAX_MESSAGE)
        with pytest.raises(ProtocolError, match=f"no frame: {size} bytes announced"):
            list(reader.feed(struct.pack("<II", size, 10)))


def test_invitations_in_messages_are_not_shown() -> None:
    """What a message prints as has neither ticket nor secret."""
    for message in (_START, ArchiveTicket(_INVITATION)):
        assert "Invitation(h:1)" in repr(message)
        assert repr(_INVITATION.secret) not in repr(message)
        assert repr(_INVITATION.ticket) not in repr(message)
