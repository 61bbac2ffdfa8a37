"""scikit-learn's 1797 handwritten digits of 8x8 pixels, drawn as in MNIST: 28x28, white on black.

Everything is determined by its seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

HELD_OUT = 0.2
SIDE, BOX = 28, 20
SEED = 0


@dataclass(frozen=True, slots=True)
class Digits:
    """``pictures``: n x 1 x 8 x 8 in 0..1, ``labels``: n."""

    pictures: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


def split(seed: int = SEED) -> tuple[Digits, Digits]:
    """The training digits, and the held-out fifth."""
    dataset = load_digits()
    pictures = torch.tensor(dataset.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(dataset.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held = order[: round(len(order) * HELD_OUT)]
    learnt = order[len(held) :]
    return Digits(pictures[learnt], labels[learnt]), Digits(pictures[held], labels[held])


def draw(pictures: torch.Tensor) -> torch.Tensor:
    """n x 1 x 8 x 8 to n x 1 x 28 x 28 in 0..1: 20 pixels high, smooth strokes, centred by mass."""
    return centred(ink(enlarged(pictures), torch.tensor(0.45), torch.tensor(9.0)))


def draw_varied(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Like :func:`draw`, with random rotation, slant, stretching, bends, shifts and strokes."""
    count = len(pictures)

    def between(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator)

    bent = functional.grid_sample(enlarged(pictures), _hand(count, generator), align_corners=False)
    inked = ink(bent, threshold=between(0.22, 0.6), edge=between(4, 16))
    softened = torch.lerp(inked, functional.avg_pool2d(inked, 3, 1, 1), between(0, 0.7))
    bright = softened * between(0.75, 1.1) + 0.02 * torch.randn(softened.shape, generator=generator)
    return _moved(centred(bright.clamp(0, 1)), generator)


def enlarged(pictures: torch.Tensor) -> torch.Tensor:
    """8x8 scaled to 20x20, centred in 28x28."""
    large = functional.interpolate(pictures, size=(BOX, BOX), mode="bicubic", align_corners=False)
    margin = (SIDE - BOX) // 2
    return functional.pad(large, [margin] * 4).clamp(0, 1)


def ink(pictures: torch.Tensor, threshold: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
    """Grey values to strokes: a lower threshold makes them thicker, a higher edge sharper."""
    low, high = torch.sigmoid(-edge * threshold), torch.sigmoid(edge * (1 - threshold))
    return ((torch.sigmoid(edge * (pictures - threshold)) - low) / (high - low)).clamp(0, 1)


def centred(pictures: torch.Tensor) -> torch.Tensor:
    """Each picture shifted by whole pixels so that its centre of mass is in the middle."""
    mass = pictures.sum(dim=(1, 2, 3)).clamp_min(1e-3)
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    down = (pictures.sum(dim=(1, 3)) @ place / mass).round().int().tolist()
    right = (pictures.sum(dim=(1, 2)) @ place / mass).round().int().tolist()
    return torch.stack([_shifted(one, -y, -x) for one, y, x in zip(pictures, down, right, strict=True)])


def _hand(count: int, generator: torch.Generator) -> torch.Tensor:
    """A sampling grid per picture: rotation, slant, width and height, and smooth bends."""

    def spread(limit: float) -> torch.Tensor:
        return limit * (2 * torch.rand(count, generator=generator) - 1)

    turn, slant = spread(math.radians(16)), spread(0.35)
    width, height = 1 / (1 + spread(0.22)), 1 / (1 + spread(0.12))
    zero = torch.zeros(count)
    across = torch.stack([width * turn.cos(), width * (slant - turn.sin()), zero], dim=1)
    along = torch.stack([height * turn.sin(), height * turn.cos(), zero], dim=1)
    grid = functional.affine_grid(
        torch.stack([across, along], dim=1), [count, 1, SIDE, SIDE], align_corners=False
    )
    bends = 0.08 * torch.randn(count, 2, 5, 5, generator=generator)
    smooth = functional.interpolate(bends, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    return grid + smooth.permute(0, 2, 3, 1)


def _moved(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    steps = torch.randint(-2, 3, (len(pictures), 2), generator=generator).tolist()
    return torch.stack(
        [_shifted(one, down, right) for one, (down, right) in zip(pictures, steps, strict=True)]
    )


def _shifted(picture: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Shifts by at most half a picture and fills the edges with black."""
    half = SIDE // 2
    top, left = half - max(-half, min(down, half)), half - max(-half, min(right, half))
    return functional.pad(picture, [half] * 4)[:, top : top + SIDE, left : left + SIDE]
