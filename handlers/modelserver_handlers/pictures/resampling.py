"""Pillow's resizing of 8-bit pictures in torch, so that it can run on a GPU: bit for bit, unless upright.

Pillow filters rows, rounds to bytes, then filters columns (Pillow 13 may turn that order round for pictures
that are higher than wide, which rounds some bytes differently), with whole numbers of 22 bits as
weights.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver_handlers.pictures.classic import Axis, Frame

_BITS = 22
_HALF = 11


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2.0 else 0.0


# Filter to its function and support.
_KERNELS: dict[Image.Resampling, tuple[Callable[[float], float], float]] = {
    Image.Resampling.BILINEAR: (_triangle, 1.0),
    Image.Resampling.BICUBIC: (_cubic, 2.0),
}


def resize_crop(pictures: torch.Tensor, frame: Frame, filter_: Image.Resampling) -> torch.Tensor:
    """n x 3 x height x width of uint8 to the frame's crop, n x height x width x 3, on the same device."""
    device = pictures.device
    down = frame.down
    first, last = _needed(down, filter_)
    rows = pictures[:, :, first:last]
    narrow = _filtered(rows.float(), _weights(frame.across, filter_, device))
    weights = tuple(each[first:last] for each in _weights(down, filter_, device))
    crops = _filtered(narrow.transpose(2, 3).float(), weights)
    return crops.permute(0, 3, 2, 1).contiguous()


def _filtered(values: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Whole numbers 0 to 255 along the last dimension, filtered and rounded as Pillow does."""
    high, low = (torch.matmul(values, half).to(torch.int32) for half in weights)
    total = (high << _HALF) + low + (1 << (_BITS - 1))
    return (total >> _BITS).clamp_(0, 255).to(torch.uint8)


def _needed(axis: Axis, filter_: Image.Resampling) -> tuple[int, int]:
    """The first pixel that the crop can depend on, and the one after the last."""
    scale = axis.length / axis.resized
    reach = _KERNELS[filter_][1] * max(1.0, scale) + 1
    first, last = (axis.first + 0.5) * scale - reach, (axis.first + axis.crop - 0.5) * scale + reach
    return max(0, math.floor(first)), min(axis.length, math.ceil(last) + 1)


@lru_cache(maxsize=128)
def _weights(
    axis: Axis, filter_: Image.Resampling, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and lower halves of the weights, each ``axis.length`` x ``axis.crop``."""
    matrix = torch.zeros(axis.crop, axis.length, dtype=torch.int32)
    for row in range(axis.crop):
        first, numbers = _taps(axis, filter_, axis.first + row)
        matrix[row, first : first + len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    halves = (matrix >> _HALF, matrix & ((1 << _HALF) - 1))
    high, low = (half.t().to(device, torch.float32).contiguous() for half in halves)
    return high, low


def _taps(axis: Axis, filter_: Image.Resampling, place: int) -> tuple[int, list[int]]:
    """The first pixel that one resized pixel is made of, and the weights from there on."""
    kernel, support = _KERNELS[filter_]
    scale = axis.length / axis.resized
    stretch = max(1.0, scale)
    centre = (place + 0.5) * scale
    first = max(0, int(centre - support * stretch + 0.5))
    last = min(axis.length, int(centre + support * stretch + 0.5))
    step = 1.0 / stretch
    parts = [kernel((at + first - centre + 0.5) * step) for at in range(last - first)]
    total = 0.0
    for part in parts:
        total += part
    shares = [part / total for part in parts]
    return first, [int(share * (1 << _BITS) + (0.5 if share >= 0 else -0.5)) for share in shares]
