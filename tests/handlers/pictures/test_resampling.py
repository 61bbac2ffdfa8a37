"""Pillow's resizing in torch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from modelserver_handlers.pictures.classic import Axis, Frame
from modelserver_handlers.pictures.resampling import resize_crop

FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


def by_pillow(picture: Image.Image, frame: Frame, filter_: Image.Resampling) -> torch.Tensor:
    """The frame's crop, height x width x 3."""
    resized = picture.resize((frame.across.resized, frame.down.resized), filter_)
    left, top = frame.across.first, frame.down.first
    crop = resized.crop((left, top, left + frame.across.crop, top + frame.down.crop))
    return pil_to_tensor(crop).permute(1, 2, 0)


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize("size", [(90, 90), (301, 200), (640, 480), (64, 64), (40, 33), (700, 64)])
def test_bytes_are_pillows(size: tuple[int, int], filter_: Image.Resampling) -> None:
    """Pictures that are not upright come out the same to the last bit, made smaller or larger."""
    chance = random.Random(size[0])
    pictures = [Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1])) for _ in range(2)]
    frame = Frame.of(size, 64, 56)
    assert frame is not None
    batch = torch.stack([pil_to_tensor(picture) for picture in pictures])
    crops = resize_crop(batch, frame, filter_)

    assert crops.shape == (2, 56, 56, 3)
    assert all(
        torch.equal(crop, by_pillow(picture, frame, filter_))
        for crop, picture in zip(crops, pictures, strict=True)
    )


def test_upright_pictures(picture: Any) -> None:
    """Of an upright picture, no byte is further off than two."""
    upright = picture(1, (240, 400))
    frame = Frame.of(upright.size, 64, 56)
    assert frame is not None
    (crop,) = resize_crop(pil_to_tensor(upright)[None], frame, Image.Resampling.BILINEAR)
    difference = crop.int() - by_pillow(upright, frame, Image.Resampling.BILINEAR).int()

    assert difference.abs().max() <= 2


def test_extremes_do_not_overflow() -> None:
    """White stays white, black black: sums of weights are whole."""
    frame = Frame(Axis(1000, 10, 1, 8), Axis(700, 10, 1, 8))
    batch = torch.stack([torch.full((3, 700, 1000), value, dtype=torch.uint8) for value in (0, 255)])
    black, white = resize_crop(batch, frame, Image.Resampling.BICUBIC)

    assert (int(black.max()), int(white.min())) == (0, 255)
