"""What is read of a JPEG file without decoding it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers.pictures.jpeg_header import JpegHeader, read_jpeg_header


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"comment": b"\xff\xd9" * 9}]
)
def test_baseline_and_progressive_files_are_ordinary(
    options: dict[str, Any], picture: Any, encode: Any
) -> None:
    """Baseline and progressive files in YCbCr are ordinary, whatever comes before the frame."""
    file = encode(picture(1, (120, 80)), "JPEG", **options)

    assert read_jpeg_header(file) == JpegHeader(120, 80, ordinary=True)


def test_other_colours_are_not_ordinary(picture: Any, encode: Any) -> None:
    """Grey and CMYK files, and RGB stored as such, are not ordinary."""
    files = [encode(picture(1).convert(mode), "JPEG") for mode in ("L", "CMYK")]
    files.append(encode(picture(1), "JPEG", keep_rgb=True))

    assert [header.ordinary for file in files if (header := read_jpeg_header(file))] == [False] * 3


def test_incomplete_files_are_not_ordinary(picture: Any, encode: Any) -> None:
    """A file that does not end as a JPEG does is not ordinary (F17)."""
    file = encode(picture(1, (120, 80)), "JPEG")

    assert read_jpeg_header(file[:-20]) == JpegHeader(120, 80, ordinary=False)


def test_other_formats_have_no_header(picture: Any, encode: Any) -> None:
    """A PNG, nothing, and a file that ends before its frame have no header."""
    file = encode(picture(1), "JPEG")

    assert [read_jpeg_header(each) for each in (encode(picture(1)), b"", file[:3], file[:30])] == [None] * 4


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tail: bytes) -> None:
    """Whatever follows the first two bytes, an answer comes."""
    header = read_jpeg_header(b"\xff\xd8" + tail)

    assert header is None or header.width >= 0
