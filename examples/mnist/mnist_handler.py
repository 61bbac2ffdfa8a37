"""Classifies pictures of digits: image bytes, or base64 as in ``{"data": "...", "target": 0}``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from PIL import Image, ImageOps
from torchvision.transforms import functional

from modelserver_handlers.image_classifier import ImageClassifier

SIDE = 28
BOX = 20  # the digit itself, as in MNIST
MEAN, STD = 0.1307, 0.3081


def digit_tensor(picture: Image.Image) -> torch.Tensor:
    """Converts a greyscale picture to 1 x 28 x 28, normalised.

    MNIST's digits are white on black. A picture with a bright border is treated as ink on paper and inverted;
    other sizes are cropped to the digit, which is then fitted into 20x20 pixels and centred by mass.
    """
    if _border_brightness(picture) > 127:
        picture = ImageOps.invert(picture)
    if picture.size != (SIDE, SIDE):
        picture = _as_in_mnist(picture)
    digit: torch.Tensor = functional.normalize(functional.to_tensor(picture), [MEAN], [STD])
    return digit


def _border_brightness(picture: Image.Image) -> float:
    pixels = functional.pil_to_tensor(picture)[0].float()
    border = torch.cat([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return border.mean().item()


def _as_in_mnist(picture: Image.Image) -> Image.Image:
    ink = picture.point(lambda value: 255 if value > 64 else 0).getbbox()
    digit = ImageOps.contain(picture.crop(ink), (BOX, BOX), Image.Resampling.BOX)
    centre_x, centre_y = _centre_of_mass(digit)
    canvas = Image.new("L", (SIDE, SIDE))
    canvas.paste(
        digit, (_within(SIDE / 2 - centre_x, digit.width), _within(SIDE / 2 - centre_y, digit.height))
    )
    return canvas


def _centre_of_mass(picture: Image.Image) -> tuple[float, float]:
    pixels = functional.pil_to_tensor(picture)[0].float()
    total = pixels.sum().clamp_min(1)
    columns = torch.arange(picture.width) + 0.5
    rows = torch.arange(picture.height) + 0.5
    return (pixels.sum(0) @ columns / total).item(), (pixels.sum(1) @ rows / total).item()


def _within(offset: float, size: int) -> int:
    return max(0, min(round(offset), SIDE - size))


class DigitClassifier(ImageClassifier):
    """Returns the digit as a number: ``2``."""

    pipelined: ClassVar[bool] = True
    picture_mode = "L"
    image_processing = staticmethod(digit_tensor)

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        return list(data.argmax(dim=1).tolist())
