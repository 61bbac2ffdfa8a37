"""Calls as they cross a socket."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from modelserver.offload.calls import Call, Closed, Ended, encode, perform, read_result, receive, send

_ENDED = msgspec.msgpack.Decoder(Ended)


def joined(parts: list[bytes], times: int) -> bytes:
    """A function that may be called."""
    return b"".join(parts) * times


def test_what_is_sent_arrives() -> None:
    """A frame of any size, cut as the socket likes, is one message again."""
    here, there = socket.socketpair()
    with here, there:
        large = Ended(msgspec.Raw(encode(b"x" * 3_000_000)))
        thread = threading.Thread(target=send, args=(here, large))
        thread.start()
        arrived = _ENDED.decode(receive(there))
        thread.join()

    assert bytes(arrived.value) == bytes(large.value)


def test_the_other_side_may_end() -> None:
    """Before a frame as in the middle of one."""
    for begun in (b"", b"\x05\0\0\0\0\0\0\0ab"):
        here, there = socket.socketpair()
        with there:
            here.sendall(begun)
            here.close()
            with pytest.raises(Closed):
                receive(there)


def test_a_call_is_made() -> None:
    """Arguments and result have the types that the function's hints say."""
    call = Call(__name__, "joined", 1.0, msgspec.Raw(encode(([b"a", b"b"], 2))))

    assert read_result(joined, perform(call).value) == b"abab"


def test_arguments_of_other_types_are_refused() -> None:
    """They never reach the function."""
    with pytest.raises(msgspec.ValidationError):
        perform(Call(__name__, "joined", 1.0, msgspec.Raw(encode((["text"], "no number")))))
