"""The facts about a JPEG file that decide what can decode it, read without decoding it."""

from __future__ import annotations

from dataclasses import dataclass

_START, _END = b"\xff\xd8", b"\xff\xd9"
# Without tables, an extension and arithmetic conditioning.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_8_BIT = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_ADOBE = 0xEE
_SCAN = 0xDA
_STANDALONE = frozenset({0x01, *range(0xD0, 0xDA)})


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """``ordinary``: YCbCr of 8 bits, Huffman coded, and complete: which all decoders read alike."""

    width: int
    height: int
    ordinary: bool


def read_jpeg_header(file: bytes) -> JpegHeader | None:
    """The header of a JPEG file; None for anything else, including a file without a frame."""
    if not file.startswith(_START):
        return None
    at, adobe_transform = 2, 1
    while at + 4 <= len(file) and file[at] == 0xFF:
        marker = file[at + 1]
        if marker == 0xFF or marker in _STANDALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _SCAN:
            return None
        segment = file[at + 4 : at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")]
        if marker == _ADOBE and segment.startswith(b"Adobe") and len(segment) >= 12:
            adobe_transform = segment[11]
        elif marker in _FRAMES:
            return _frame(marker, segment, complete=file.endswith(_END), is_ycc=adobe_transform == 1)
        at += 2 + max(2, int.from_bytes(file[at + 2 : at + 4], "big"))
    return None


def _frame(marker: int, segment: bytes, *, complete: bool, is_ycc: bool) -> JpegHeader | None:
    if len(segment) < 6:
        return None
    precision, components = segment[0], segment[5]
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    known = marker in _HUFFMAN_8_BIT and precision == 8 and components == 3 and width > 0 and height > 0
    # Without Adobe's segment, the components' names tell libjpeg that it is RGB.
    named = bytes(segment[6::3][:3]) != b"RGB"
    return JpegHeader(width, height, known and is_ycc and named and complete)
