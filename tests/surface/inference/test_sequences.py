import re

import msgspec

from modelserver.engine.batching.request import Request, SequencedRequest, SequenceMark
from modelserver.engine.wire.messages import SequenceHeaders
from modelserver.surface.inference.requests import read_sequence, sequence_headers

NAMES = SequenceHeaders()
OWN = SequenceHeaders("X-Id", "X-Start", "X-End")


def packed(**headers: str) -> bytes:
    return msgspec.msgpack.encode([(n.replace("__", "-").encode(), v.encode()) for n, v in headers.items()])


def unpacked(headers: bytes) -> list[tuple[str, str]]:
    pairs: list[tuple[bytes, bytes]] = msgspec.msgpack.decode(headers)
    return [(name.decode(), value.decode()) for name, value in pairs]


def request(mark: SequenceMark, *, began: bool = False) -> SequencedRequest:
    made = SequencedRequest("id", [], [], 0.0, mark=mark)
    made.is_first = began
    return made


def test_header_names_the_sequence():
    """It may be written in any case."""
    sent = packed(ts_request_sequence_id="seq_0", ts_request_sequence_start="true", accept="*/*")
    other = packed(TS_Request_Sequence_ID=" a ", TS_REQUEST_SEQUENCE_END="True")

    assert read_sequence(sent, NAMES) == (SequenceMark("seq_0", starts=True), sent)
    assert read_sequence(other, NAMES)[0] == SequenceMark("a", ends=True)


def test_request_without_an_id_begins_a_sequence():
    """Without an id the request begins a sequence of its own, which the handler sees (reference 8.9)."""
    sent = packed(accept="*/*", ts_request_sequence_id="", ts_request_sequence_start="false")
    first, seen = read_sequence(sent, NAMES)
    second, _ = read_sequence(sent, NAMES)

    assert re.fullmatch(r"ts-seq-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first.id)
    assert first.starts
    assert first.id != second.id
    identity = ("ts_request_sequence_id", first.id)
    assert unpacked(seen) == [("accept", "*/*"), identity, ("ts_request_sequence_start", "true")]


def test_operators_own_names_are_read():
    """The keys ``ts_header_key_sequence_*`` say other names (reference 3.3)."""
    assert read_sequence(packed(X__Id="7", X__End="true"), OWN)[0] == SequenceMark("7", ends=True)
    mark, seen = read_sequence(packed(ts_request_sequence_id="7"), OWN)

    assert dict(unpacked(seen))["X-Id"] == mark.id != "7"
    assert dict(unpacked(seen))["X-Start"] == "true"


def test_answers_name_their_sequence():
    """A header that the handler set itself, as handlers for TorchServe must, is not said twice."""
    name, first = ("ts_request_sequence_id", "a"), ("ts_request_sequence_start", "true")

    assert sequence_headers(request(SequenceMark("a")), NAMES, ()) == [name]
    assert sequence_headers(request(SequenceMark("a"), began=True), NAMES, ()) == [name, first]
    assert sequence_headers(request(SequenceMark("a")), NAMES, [("TS_request_sequence_id", "mine")]) == []
    assert sequence_headers(Request("id", [], [], 0.0), NAMES, ()) == []
