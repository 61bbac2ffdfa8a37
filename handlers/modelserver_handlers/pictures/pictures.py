"""Pictures from client input; anything else raises BadInput."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError

from modelserver_handlers.errors import BadInput
from modelserver_handlers.texts import value_in

Size = tuple[int, int]  # width, height


def picture_input(row: Any) -> bytes | torch.Tensor:
    """The encoded picture of one row, or the tensor that a list of numbers stands for.

    A row is ``{"data": ...}``, ``{"body": ...}``, ``{"b64": "..."}`` or the value itself: bytes, base64 text
    (a ``data:`` URL too) or nested lists of numbers.
    """
    if isinstance(row, Mapping):
        return picture_input(value_in(row, "picture")[1])
    if isinstance(row, (bytes, bytearray, memoryview)):
        return bytes(row)
    if isinstance(row, str):
        return _from_base64(row)
    if isinstance(row, torch.Tensor):
        return row
    if isinstance(row, (list, tuple)):
        return _from_numbers(row)
    raise BadInput(f"a picture cannot be made of a {_json_name(row)}")


def _from_base64(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    compact = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the text is not a picture in base64") from None


def _from_numbers(values: Any) -> torch.Tensor:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"the lists are not a tensor of numbers: {error}") from None


def _json_name(value: Any) -> str:
    return "null" if value is None else "boolean" if isinstance(value, bool) else type(value).__name__


def open_picture(
    encoded: bytes, mode: str | None, enough: Callable[[Size], Size] | None = None
) -> Image.Image:
    """The decoded picture in ``mode`` (``RGB``, ``L``; None: as it is); of an animation, the first frame.

    A JPEG may be decoded at a half, a quarter or an eighth of its size, much faster, if that is still at
    least ``enough`` of its size.
    """
    try:
        picture = _open(encoded, enough)
        return picture if mode is None else in_mode(picture, mode)
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's readers raise anything for a broken file
        raise BadInput(f"the picture is damaged: {error or type(error).__name__}") from None


def _open(encoded: bytes, enough: Callable[[Size], Size] | None) -> Image.Image:
    if not encoded:
        raise BadInput("no picture: the input is empty")
    try:
        picture = Image.open(io.BytesIO(encoded))
    except UnidentifiedImageError:
        raise BadInput(f"the {len(encoded)} bytes are not a picture in a format that can be read") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadInput(f"the picture is too large: more than {Image.MAX_IMAGE_PIXELS} pixels") from None
    width, height = picture.size
    # Pillow only warns up to twice its limit.
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        raise BadInput(f"the picture is too large: {width}x{height} of {Image.MAX_IMAGE_PIXELS} pixels")
    if enough is not None:
        picture.draft(None, enough(picture.size))
    picture.load()
    return picture


def in_mode(picture: Image.Image, mode: str) -> Image.Image:
    """The picture in another mode: more than 8 bits are scaled to 8, an alpha channel is dropped."""
    if picture.mode == mode:
        return picture
    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _in_8_bits(picture)
    elif picture.mode == "P" and isinstance(picture.info.get("transparency"), bytes):
        picture = picture.convert("RGBA")
    return picture.convert(mode)


def _in_8_bits(picture: Image.Image) -> Image.Image:
    floating = picture.convert("F")
    scale = _scale(picture.mode, floating.getextrema()[1])
    return floating.point(lambda value: value * scale + 0.0).convert("L")


def _scale(mode: str, highest: Any) -> float:
    if mode == "F":
        return 255.0 if highest <= 1 else 1.0
    return 1.0 if mode == "I" and highest <= 255 else 1 / 256
