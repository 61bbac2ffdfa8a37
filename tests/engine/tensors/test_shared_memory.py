"""Shared memory that clients register: in a folder that takes the place of the machine's."""

import json
import os
import struct
from typing import Any

import msgspec
import pytest

from modelserver.engine.tensors.rest import decode_request, encode_request, encode_response
from modelserver.engine.tensors.shared_memory import LIGHT_SHARED, Memory, Regions
from modelserver.engine.tensors.tensor import OutputTensor
from modelserver.engine.tensors.weight import TooHeavy
from modelserver.errors import BadRequest, PayloadTooLarge, ResourceNotFound

MOST = 1 << 24
NUMBERS = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture
def regions(tmp_path):
    """Memory `/t_x` of 32 bytes may be registered, and is, as `x`, from byte 8 on."""
    (tmp_path / "t_x").write_bytes(bytes(8) + NUMBERS + bytes(8))
    made = Regions("/t_", MOST, tmp_path)
    made.register("x", "/t_x", 8, 24)
    return made


def request(size: object = 16, offset: object = 0, region: object = "x", **fields: Any) -> bytes:
    place = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    tensor = {"name": "a", "datatype": "FP32", "shape": [4], "parameters": place, **fields}
    return json.dumps({"inputs": [tensor]}).encode()


def decode(body: bytes, memory: Memory, **more: Any) -> Any:
    return decode_request(body, None, memory=memory, **more)


# Registering


def test_regions_are_listed_until_they_are_unregistered(regions):
    place = {"name": "x", "key": "/t_x", "offset": 8, "byte_size": 24}

    assert regions.status() == regions.status("x") == [place]
    regions.unregister("y")
    assert regions.status() == [place]
    regions.unregister("x")
    assert regions.status() == []
    with pytest.raises(ResourceNotFound, match="'x'"):
        regions.status("x")

    regions.register("x", "/t_x", 0, 8)
    regions.unregister()
    regions.register("x", "t_x", 0, 32)

    assert [each["key"] for each in regions.status()] == ["t_x"]


@pytest.mark.parametrize(
    ("name", "key", "offset", "size", "reason"),
    [
        ("x", "/t_x", 0, 8, "already registered"),
        ("y", "/other", 0, 8, "does not begin with '/t_'"),
        ("y", "/../t_x", 0, 8, "not the name of shared memory"),
        ("y", "/t_/../t_x", 0, 8, "not the name of shared memory"),
        ("y", "t_x/../../etc/passwd", 0, 8, "not the name of shared memory"),
        ("y", "/..", 0, 8, "not the name of shared memory"),
        ("y", "//t_x", 0, 8, "not the name of shared memory"),
        ("y", "/t_\0", 0, 8, "not the name of shared memory"),
        ("y", "/t_" + "x" * 300, 0, 8, "not the name of shared memory"),
        ("y", "/t_\ud800", 0, 8, "cannot be opened"),
        ("y", "", 0, 8, "not the name of shared memory"),
        ("y", "/t_none", 0, 8, "No such file"),
        ("y", "/t_x", 0, 33, "has 32 bytes"),
        ("y", "/t_x", 25, 8, "has 32 bytes"),
        ("y", "/t_x", 2**64 - 1, 2**64 - 1, "has 32 bytes"),
        ("y", "/t_x", -8, 8, "an offset of at least 0"),
        ("y", "/t_x", 0, 0, "a size of at least 1"),
        ("", "/t_x", 0, 8, "1 to 255 characters"),
        ("y" * 256, "/t_x", 0, 8, "1 to 255 characters"),
    ],
)
def test_wrong_regions_are_refused(regions, name, key, offset, size, reason):
    """What is outside of the prefix, not there, shorter than said, or has no good name."""
    with pytest.raises(BadRequest, match=reason):
        regions.register(name, key, offset, size)
    assert len(regions.status()) == 1


def test_what_is_no_memory(regions, tmp_path):
    """Links are not followed, wherever they lead; queues and folders are refused at once."""
    (tmp_path / "t_link").symlink_to(tmp_path / "t_x")
    os.mkfifo(tmp_path / "t_queue")
    (tmp_path / "t_folder").mkdir()

    for key in ("t_link", "t_queue", "t_folder"):
        with pytest.raises(BadRequest, match=r"cannot be opened|is not shared memory"):
            regions.register("y", key, 0, 1)


def test_prefix_decides_what_may_be_registered(tmp_path):
    regions = Regions(None, MOST, tmp_path)

    with pytest.raises(BadRequest, match="no shared_memory_prefix"):
        regions.register("x", "/t_x", 0, 8)
    with pytest.raises(BadRequest, match="input 'a': shared memory is not allowed"):
        decode(request(), regions.memory)

    (tmp_path / "any").write_bytes(bytes(8))
    all_names = Regions("/", MOST, tmp_path)
    all_names.register("x", "any", 0, 8)

    assert len(all_names.status()) == 1


# Inputs


@pytest.mark.parametrize("by_helper", [False, True])
def test_inputs_and_parts_of_regions_are_read(regions, by_helper):
    memory = regions.memory
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
def test_bad_inputs_are_refused(regions, body, reason):
    with pytest.raises(BadRequest, match=reason):
        decode(body, regions.memory)


def test_shortened_memory_is_an_error(regions, tmp_path):
    """Memory that its client has cut is an error of the request, where a mapping would end the process."""
    os.truncate(tmp_path / "t_x", 12)

    with pytest.raises(BadRequest, match="'x' has become shorter"):
        decode(request(), regions.memory)


@pytest.mark.parametrize("instead", [None, b"another's" * 9])
def test_renamed_memory_is_not_read(regions, tmp_path, instead):
    """What goes by the name now is not what was registered, and not read."""
    (tmp_path / "t_x").rename(tmp_path / "gone")
    if instead is not None:
        (tmp_path / "t_x").write_bytes(instead)

    with pytest.raises(BadRequest, match=r"cannot be opened|no longer what was registered"):
        decode(request(), regions.memory)


def test_sizes_are_limited_together(regions, tmp_path):
    """The inputs of a request count together, as those of a body; many are not read on the event loop."""
    with (tmp_path / "t_large").open("wb") as file:
        file.truncate(MOST)
    regions.register("large", "/t_large", 0, MOST)
    body = request(LIGHT_SHARED + 4, region="large").replace(b"[4]", b"[%d]" % (LIGHT_SHARED // 4 + 1))
    first = json.loads(body)["inputs"][0]
    both = json.dumps({"inputs": [first, {**first, "name": "b"}]}).encode()

    with pytest.raises(TooHeavy):
        decode(body, regions.memory, light=True)
    assert len(decode(body, regions.memory).inputs[0].data) == LIGHT_SHARED + 4
    with pytest.raises(PayloadTooLarge, match=f"max_request_size={MOST}"):
        decode(both, regions.memory)


def test_helpers_get_regions_that_a_body_can_name(regions):
    """There may be thousands, which would be copied with each large request."""
    escaped = b'{"inputs": [{"parameters": {"shared\\u005fmemory_region": "in"}}]}'

    assert regions.memory.for_helper(b'{"inputs": []}').regions == {}
    assert regions.memory.for_helper(b'{"inputs": []}').allowed
    assert regions.memory.for_helper(b'{"shared_memory_region": "in"}') is regions.memory
    assert regions.memory.for_helper(escaped) is regions.memory


def test_for_models_that_get_bodies_whole(regions):
    """Their JSON has the numbers; a body that names no memory is not touched."""
    body = encode_request(request(), None, memory=regions.memory)

    assert json.loads(body)["inputs"][0]["data"] == [1, 2, 3, 4]
    assert encode_request(b"{}", None, memory=regions.memory) == b"{}"


# Outputs


def asking(regions: Regions, size: int, offset: int = 0) -> Any:
    """A request whose output `o` goes to shared memory."""
    place = {"shared_memory_region": "x", "shared_memory_byte_size": size, "shared_memory_offset": offset}
    tensor = {"name": "a", "datatype": "FP32", "shape": [1], "data": [1]}
    body = {"inputs": [tensor], "outputs": [{"name": "o", "parameters": place}]}
    return decode(json.dumps(body).encode(), regions.memory)


OUTPUT = OutputTensor("o", "FP32", (4,), [NUMBERS[::-1][:8], memoryview(NUMBERS[::-1])[8:]])


def answer(query: Any) -> Any:
    body, length = encode_response("m", "1", query, "id", [OUTPUT])
    assert length is None
    return json.loads(body)["outputs"]


def test_outputs_are_written(regions, tmp_path):
    assert answer(asking(regions, 20, 4)) == [{"name": "o", "shape": [4], "datatype": "FP32"}]
    assert (tmp_path / "t_x").read_bytes() == bytes(8) + NUMBERS[:4] + NUMBERS[::-1] + bytes(4)


def test_outputs_that_do_not_fit(regions, tmp_path):
    before = (tmp_path / "t_x").read_bytes()

    with pytest.raises(BadRequest, match="output 'o': it has 16 bytes, its part of the shared memory 12"):
        answer(asking(regions, 12))
    assert (tmp_path / "t_x").read_bytes() == before


def test_memory_unregistered_in_use_is_still_written(regions, tmp_path):
    query = asking(regions, 16)
    regions.unregister()

    answer(query)
    assert (tmp_path / "t_x").read_bytes()[8:24] == NUMBERS[::-1]
    with pytest.raises(BadRequest, match="no shared memory is registered as 'x'"):
        asking(regions, 16)


def test_memory_changed_in_use_is_an_error(regions, tmp_path):
    query = asking(regions, 16)
    os.truncate(tmp_path / "t_x", 10)
    with pytest.raises(BadRequest, match="has become shorter"):
        answer(query)
    assert (tmp_path / "t_x").stat().st_size == 10

    (tmp_path / "new").write_bytes(bytes(32))
    (tmp_path / "new").rename(tmp_path / "t_x")
    with pytest.raises(BadRequest, match="no longer what was registered"):
        answer(query)
    assert (tmp_path / "t_x").read_bytes() == bytes(32)
