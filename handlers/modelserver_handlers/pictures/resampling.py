"""Pillow's resizing of 8-bit pictures in torch, so that it can run on a GPU: bit for bit, unless upright.

Pillow filters rows, rounds to bytes, then filters columns (Pillow 13 may turn that order round for pictures
that are higher than wide, which rounds some bytes differently), with whole numbers of 22 bits as
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image

from modelserver_handlers.pictures.classic import Axis, Frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_PIXELS = 50_000_000  # of pictures that are resized together: each takes 12 bytes as floats

_BITS = 22
_LOW_BITS = 12  # signed; both parts have at most 11 bits besides the sign, which TF32 holds exactly


def _triangle(x: Floats) -> Floats:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: Floats) -> Floats:
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


# The function and the support of each filter.
_KERNELS: dict[Image.Resampling, tuple[Callable[[Floats], Floats], float]] = {
    Image.Resampling.BILINEAR: (_triangle, 1.0),
    Image.Resampling.BICUBIC: (_cubic, 2.0),
}


class Taps(NamedTuple):
    """What the resized pixels of a crop are made of, along one axis.

    They need the pixels ``start`` to ``stop``; pixel i is the sum of those from ``start + first[i]`` on,
    times ``weights[i]``.
    """

    start: int
    stop: int
    first: NDArray[np.int64]
    weights: NDArray[np.int32]

    @property
    def length(self) -> int:
        """How many pixels are needed."""
        return self.stop - self.start


@lru_cache(maxsize=2048)
def taps(axis: Axis, filter_: Image.Resampling) -> Taps:
    """The crop's pixels of an axis, in Pillow's arithmetic; some kilobytes, 100 for the largest pictures."""
    kernel, support = _KERNELS[filter_]
    scale = axis.length / axis.resized
    stretch = max(1.0, scale)
    centres = (np.arange(axis.first, axis.first + axis.crop) + 0.5) * scale
    first = np.maximum(0, (centres - support * stretch + 0.5).astype(np.int64))
    last = np.minimum(axis.length, (centres + support * stretch + 0.5).astype(np.int64))
    at = np.arange((last - first).max())
    parts = kernel((at + first[:, None] - centres[:, None] + 0.5) * (1.0 / stretch))
    parts[at >= (last - first)[:, None]] = 0.0
    # One after the other, as Pillow adds them: sum() adds pairs.
    shares = parts / np.cumsum(parts, axis=1)[:, -1:]
    weights = (shares * (1 << _BITS) + np.where(shares >= 0, 0.5, -0.5)).astype(np.int32)
    return Taps(int(first[0]), int(last[-1]), first - first[0], weights)


def resize_crops(
    pictures: Sequence[torch.Tensor], frames: Sequence[Frame], filter_: Image.Resampling
) -> list[torch.Tensor]:
    """Pictures (3 x height x width of uint8) to their frames' crops, height x width x 3, on the same device.

    Those of similar sizes are computed together: all crops have one size.
    """
    across = [taps(frame.across, filter_) for frame in frames]
    down = [taps(frame.down, filter_) for frame in frames]
    crops = list(pictures)
    for places in _similar([max(one.length, other.length) for one, other in zip(across, down, strict=True)]):
        parts = [
            pictures[place][:, down[place].start : down[place].stop, across[place].start : across[place].stop]
            for place in places
        ]
        together = _resized(parts, [across[place] for place in places], [down[place] for place in places])
        for place, crop in zip(places, together, strict=True):
            crops[place] = crop
    return crops


def _similar(sides: Sequence[int]) -> Iterable[list[int]]:
    """The places of pictures whose longer sides differ by less than a factor of two, as many as fit."""
    groups: dict[int, list[int]] = {}
    for place, side in enumerate(sides):
        groups.setdefault(side.bit_length(), []).append(place)
    for places in groups.values():
        count = max(1, MAX_PIXELS // max(sides[place] for place in places) ** 2)
        for start in range(0, len(places), count):
            yield places[start : start + count]


def _resized(parts: Sequence[torch.Tensor], across: Sequence[Taps], down: Sequence[Taps]) -> torch.Tensor:
    """The needed part of each picture, 3 x height x width of uint8, to n x height x width x 3."""
    height, width = (max(each.length for each in axis) for axis in (down, across))
    device = parts[0].device
    values = torch.zeros(len(parts), height, 3, width, device=device)
    for place, part in enumerate(parts):
        values[place, : part.shape[1], :, : part.shape[2]] = part.transpose(0, 1)
    narrow = _rounded(torch.bmm(values.flatten(1, 2), weights_of(across, width, device).mT), dim=2)
    rows = narrow.view(len(parts), height, -1).float()
    crops = _rounded(torch.bmm(weights_of(down, height, device), rows), dim=1)
    return crops.view(len(parts), crops.shape[1], 3, -1).transpose(2, 3).contiguous()


def _rounded(sums: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums by the upper, then by the lower parts of weights along ``dim``, to bytes, as Pillow rounds."""
    high, low = sums.to(torch.int32).chunk(2, dim)
    total = (high << _LOW_BITS) + low + (1 << (_BITS - 1))
    return (total >> _BITS).clamp_(0, 255).to(torch.uint8)


def weights_of(axes: Sequence[Taps], length: int, device: torch.device) -> torch.Tensor:
    """The upper, then the lower parts of the weights for ``length`` pixels: n x 2 crop x length of floats."""
    count, crop, reach = len(axes), len(axes[0].first), max(each.weights.shape[1] for each in axes)
    whole = np.zeros((count, crop, reach), np.int32)
    for part, each in zip(whole, axes, strict=True):
        part[:, : each.weights.shape[1]] = each.weights
    middle = 1 << (_LOW_BITS - 1)
    low = ((whole + middle) & (2 * middle - 1)) - middle
    halves = np.concatenate([(whole - low) >> _LOW_BITS, low], axis=1).astype(np.float32)
    first = torch.from_numpy(np.stack([each.first for each in axes])).to(device)
    places = first.repeat(1, 2).unsqueeze(2) + torch.arange(reach, device=device)
    # Wider than needed: the zeros after a short row of weights may be beyond the last pixel.
    matrix = torch.zeros(count, 2 * crop, length + reach, device=device)
    return matrix.scatter_(2, places, torch.from_numpy(halves).to(device))[:, :, :length]
