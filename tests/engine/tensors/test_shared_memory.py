"""Shared memory that clients register: in a folder that takes the place of the machine's."""

import json
import os
import struct

import msgspec
import pytest

from modelserver.engine.tensors.rest import decode_request, encode_request, encode_response
from modelserver.engine.tensors.shared_memory import LIGHT_SHARED, Memory, SharedMemory
from modelserver.engine.tensors.tensor import OutputTensor
from modelserver.engine.tensors.weight import TooHeavy
from modelserver.errors import BadRequest, PayloadTooLarge

MOST = 1 << 24
NUMBERS = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture
def shared(tmp_path):
    """Memory of 32 bytes is registered as `x`, from byte 8 on."""
    (tmp_path / "t_x").write_bytes(bytes(8) + NUMBERS + bytes(8))
    made = SharedMemory(allowed=True, most=MOST)
    made.memory = made.memory.adding("x", "/t_x", str(tmp_path / "t_x"), 8, 24)
    return made


def request(size=16, offset=0, region="x", **fields):
    place = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    tensor = {"name": "a", "datatype": "FP32", "shape": [4], "parameters": place, **fields}
    return json.dumps({"inputs": [tensor]}).encode()


def decode(body, memory, **more):
    return decode_request(body, None, memory=memory, **more)


@pytest.mark.parametrize("by_helper", [False, True])
def test_inputs_and_parts_of_regions_are_read(shared, by_helper):
    memory = shared.memory
    if by_helper:
        memory = msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=Memory)
    (whole,) = decode(request(), memory).inputs
    (part,) = decode(request(8, 4).replace(b'"shape": [4]', b'"shape": [2]'), memory).inputs

    assert (bytes(whole.data), whole.parameters) == (NUMBERS, {})
    assert bytes(part.data) == NUMBERS[4:12]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (request(25), "has 24 bytes, which 25 from byte 0 on exceed"),
        (request(16, 9), "which 16 from byte 9 on exceed"),
        (request(2**64 - 1, 2**64 - 1), "exceed"),
        (request(-1), "shared_memory_byte_size is -1"),
        (request(16, -1), "shared_memory_offset is -1"),
        (request("16"), "shared_memory_byte_size is '16'"),
        (request(16.0), "shared_memory_byte_size is 16.0"),
        (request(True), "shared_memory_byte_size is True"),
        (request(region="y"), "input 'a': no shared memory is registered as 'y'"),
        (request(region=1), "no shared memory is registered as '1'"),
        (request(12), "its shape needs 16 bytes, its data has 12"),
        (request(data=[1]), "both 'data' and shared_memory_region"),
    ],
)
def test_bad_inputs_are_refused(shared, body, reason):
    with pytest.raises(BadRequest, match=reason):
        decode(body, shared.memory)


def test_shortened_memory_is_an_error(shared, tmp_path):
    """Memory that its client has cut is an error of the request, where a mapping would end the process."""
    os.truncate(tmp_path / "t_x", 12)

    with pytest.raises(BadRequest, match="'x' has become shorter"):
        decode(request(), shared.memory)


@pytest.mark.parametrize("instead", [None, b"another's" * 9])
def test_renamed_memory_is_not_read(shared, tmp_path, instead):
    """What goes by the name now is not what was registered, and not read."""
    (tmp_path / "t_x").rename(tmp_path / "gone")
    if instead is not None:
        (tmp_path / "t_x").write_bytes(instead)

    with pytest.raises(BadRequest, match=r"cannot be opened|no longer what was registered"):
        decode(request(), shared.memory)


def test_sizes_are_limited_together(shared, tmp_path):
    """The inputs of a request count together, as those of a body; many are not read on the event loop."""
    with (tmp_path / "t_large").open("wb") as file:
        file.truncate(MOST)
    shared.memory = shared.memory.adding("large", "/t_large", str(tmp_path / "t_large"), 0, MOST)
    body = request(LIGHT_SHARED + 4, region="large").replace(b"[4]", b"[%d]" % (LIGHT_SHARED // 4 + 1))
    first = json.loads(body)["inputs"][0]
    both = json.dumps({"inputs": [first, {**first, "name": "b"}]}).encode()

    with pytest.raises(TooHeavy):
        decode(body, shared.memory, light=True)
    assert len(decode(body, shared.memory).inputs[0].data) == LIGHT_SHARED + 4
    with pytest.raises(PayloadTooLarge, match=f"max_request_size={MOST}"):
        decode(both, shared.memory)


def test_helpers_get_regions_that_a_body_can_name(shared):
    """There may be thousands, which would be copied with each large request."""
    escaped = b'{"inputs": [{"parameters": {"shared\\u005fmemory_region": "in"}}]}'

    assert shared.memory.for_helper(b'{"inputs": []}').regions == {}
    assert shared.memory.for_helper(b'{"inputs": []}').allowed
    assert shared.memory.for_helper(b'{"shared_memory_region": "in"}') is shared.memory
    assert shared.memory.for_helper(escaped) is shared.memory


def test_for_models_that_get_bodies_whole(shared):
    """Their JSON has the numbers; a body that names no memory is not touched."""
    body = encode_request(request(), None, memory=shared.memory)

    assert json.loads(body)["inputs"][0]["data"] == [1, 2, 3, 4]
    assert encode_request(b"{}", None, memory=shared.memory) == b"{}"


def asking(shared, size, offset=0):
    """A request whose output `o` goes to shared memory."""
    place = {"shared_memory_region": "x", "shared_memory_byte_size": size, "shared_memory_offset": offset}
    tensor = {"name": "a", "datatype": "FP32", "shape": [1], "data": [1]}
    body = {"inputs": [tensor], "outputs": [{"name": "o", "parameters": place}]}
    return decode(json.dumps(body).encode(), shared.memory)


OUTPUT = OutputTensor("o", "FP32", (4,), [NUMBERS[::-1][:8], memoryview(NUMBERS[::-1])[8:]])


def answer(query):
    body, length = encode_response("m", "1", query, "id", [OUTPUT])
    assert length is None
    return json.loads(body)["outputs"]


def test_outputs_are_written(shared, tmp_path):
    assert answer(asking(shared, 20, 4)) == [{"name": "o", "shape": [4], "datatype": "FP32"}]
    assert (tmp_path / "t_x").read_bytes() == bytes(8) + NUMBERS[:4] + NUMBERS[::-1] + bytes(4)


def test_outputs_that_do_not_fit(shared, tmp_path):
    before = (tmp_path / "t_x").read_bytes()

    with pytest.raises(BadRequest, match="output 'o': it has 16 bytes, its part of the shared memory 12"):
        answer(asking(shared, 12))
    assert (tmp_path / "t_x").read_bytes() == before


def test_memory_unregistered_in_use_is_still_written(shared, tmp_path):
    query = asking(shared, 16)
    shared.memory = msgspec.structs.replace(shared.memory, regions={})

    answer(query)
    assert (tmp_path / "t_x").read_bytes()[8:24] == NUMBERS[::-1]
    with pytest.raises(BadRequest, match="no shared memory is registered as 'x'"):
        asking(shared, 16)


def test_memory_changed_in_use_is_an_error(shared, tmp_path):
    query = asking(shared, 16)
    os.truncate(tmp_path / "t_x", 10)
    with pytest.raises(BadRequest, match="has become shorter"):
        answer(query)
    assert (tmp_path / "t_x").stat().st_size == 10

    (tmp_path / "new").write_bytes(bytes(32))
    (tmp_path / "new").rename(tmp_path / "t_x")
    with pytest.raises(BadRequest, match="no longer what was registered"):
        answer(query)
    assert (tmp_path / "t_x").read_bytes() == bytes(32)
