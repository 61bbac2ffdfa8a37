import base64
import io
import struct
import warnings
import zlib
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from modelserver_handlers.errors import BadInput
from modelserver_handlers.pictures.pictures import open_picture, picture_input

TEXT = base64.b64encode(b"\xfb\xefpicture").decode()


@pytest.mark.parametrize(
    "row",
    [
        b"\xfb\xefpicture",
        bytearray(b"\xfb\xefpicture"),
        memoryview(b"\xfb\xefpicture"),
        TEXT,
        TEXT.rstrip("=").replace("+", "-").replace("/", "_"),
        f"data:image/png;base64,{TEXT}",
        f"{TEXT[:4]}\r\n {TEXT[4:]}",
        {"data": TEXT, "target": 0},
        {"body": bytearray(b"\xfb\xefpicture")},
        {"data": None, "body": TEXT},
        {"data": b"", "body": TEXT},
        {"b64": TEXT},
        {"body": {"data": {"b64": TEXT}}},
    ],
)
def test_encoded_pictures_become_bytes(row):
    assert picture_input(row) == b"\xfb\xefpicture"


@pytest.mark.parametrize("row", [[[1, 2], [3, 4]], ((1.0, 2.0), (3.0, 4.0)), {"data": [[1, 2], [3, 4]]}])
def test_numbers_become_tensors(row):
    assert torch.equal(torch.as_tensor(picture_input(row)), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))

    tensor = torch.zeros(3)

    assert picture_input({"data": tensor}) is tensor


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "fields sent: none"),
        ({"image": b"x"}, "fields sent: 'image'"),
        ({"data": "", "body": bytearray()}, "missing or empty"),
        ("not base64!", "not a picture in base64"),
        ("ü", "not a picture in base64"),
        ([[1, 2], [3]], "not a tensor of numbers"),
        ([["a"]], "not a tensor of numbers"),
        ([10**400], "not a tensor of numbers"),
        (None, "made of a null"),
        (True, "made of a boolean"),
        (3, "made of a int"),
    ],
)
def test_other_rows_are_refused(row, message):
    """Anything else is refused with a sentence that says what was wrong (F2, F8)."""
    with pytest.raises(BadInput, match=message):
        picture_input(row)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr", "LAB", "I;16", "F", "I"])
def test_other_modes_become_rgb(mode, picture, encode):
    """Grey, palette, alpha, CMYK and deeper pictures become RGB, close to what they show (F17)."""
    grey = picture(1).convert("L")
    if mode == "I;16":
        deep = grey.convert("I").point(lambda value: value * 256 + 0)
        file = encode(Image.frombytes("I;16", deep.size, _words(deep)))
    elif mode in {"F", "I", "CMYK", "YCbCr", "LAB"}:
        output = grey.convert("RGB") if mode in {"YCbCr", "CMYK"} else grey
        file = encode(output.convert(mode) if mode != "LAB" else _lab(grey), "TIFF")
    else:
        file = encode(grey.convert(mode))
    opened = open_picture(file, "RGB")

    assert (opened.mode, opened.size) == ("RGB", grey.size)
    if mode not in {"1", "LAB"}:
        difference = torch.tensor(list(opened.convert("L").tobytes())) - torch.tensor(list(grey.tobytes()))
        assert difference.abs().max() <= 6


def _words(deep):
    values = struct.unpack(f"={deep.width * deep.height}i", deep.tobytes())
    return struct.pack(f"<{len(values)}H", *values)


def _lab(grey):
    middle = Image.new("L", grey.size, 128)
    return Image.merge("LAB", (grey, middle, middle))


def test_a_jpeg_may_be_decoded_smaller(picture, encode):
    """It is decoded at the smallest fraction that is still enough; other formats are not (F17)."""
    large = picture(1, (400, 300))

    assert open_picture(encode(large, "JPEG"), "RGB", lambda size: (size[0] // 3, size[1] // 3)).size == (
        200,
        150,
    )
    assert open_picture(encode(large, "JPEG"), "RGB", lambda _: (390, 290)).size == (400, 300)
    assert open_picture(encode(large), "RGB", lambda _: (10, 10)).size == (400, 300)


def test_transparent_palettes_are_converted(picture, encode):
    palette = picture(1).convert("P", palette=Image.Palette.ADAPTIVE)
    assert open_picture(encode(palette, transparency=bytes([0, 255])), "RGB").mode == "RGB"


def test_animation_gives_its_first_frame(picture, encode):
    """An animated GIF counts as its first frame (F17)."""
    first, second = picture(1).convert("P"), picture(2).convert("P")
    animated = encode(first, "GIF", save_all=True, append_images=[second])

    assert open_picture(animated, "RGB").tobytes() == open_picture(encode(first, "GIF"), "RGB").tobytes()


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_truncated_pictures_are_refused(form, picture, encode):
    """A truncated picture is refused, whatever its form (F17)."""
    file = encode(picture(1), form)

    with pytest.raises(BadInput, match=r"damaged: .*truncated"):
        open_picture(file[: len(file) // 2], "RGB")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"hello", "the 5 bytes are not a picture"), (bytes(1000), "not a picture")],
)
def test_other_bytes_are_refused(content, message):
    with pytest.raises(BadInput, match=message):
        open_picture(content, "RGB")


def test_broken_contents_are_refused(picture, encode):
    """A damaged chunk inside a well begun file is refused (F17)."""
    file = bytearray(encode(picture(1)))
    middle = file.index(b"IDAT") + 40
    file[middle : middle + 100] = bytes(100)

    with pytest.raises(BadInput, match="damaged"):
        open_picture(bytes(file), "RGB")


def _chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _bomb(side):
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize("side", [10_000, 100_000])
@pytest.mark.parametrize("action", ["ignore", "error"])
def test_bombs_are_refused_unread(side, action):
    """More pixels than Pillow's limit, with and without its warning, also where that is an error (F17)."""
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(BadInput, match="too large"):
            open_picture(_bomb(side), "RGB")


def test_failing_readers_are_refusals(monkeypatch, picture, encode):
    file = encode(picture(1))
    opened = type(Image.open(io.BytesIO(file)))
    monkeypatch.setattr(opened, "load", Mock(side_effect=struct.error("unpack")))
    with pytest.raises(BadInput, match="damaged: unpack"):
        open_picture(file, "RGB")
    monkeypatch.setattr(opened, "load", Mock(side_effect=MemoryError()))
    with pytest.raises(MemoryError):
        open_picture(file, "RGB")
