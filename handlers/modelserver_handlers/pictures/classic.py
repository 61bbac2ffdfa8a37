"""ImageNet's classic processing: resize, crop the middle, scale, normalise; for one picture, or for a batch.

A batch is faster than single pictures, with bit-identical results: only the crop's part is resized, and
floats are written directly to the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from modelserver_handlers.handler_options import whole_number

_FILTERS = {
    transforms.InterpolationMode.BILINEAR: Image.Resampling.BILINEAR,
    transforms.InterpolationMode.BICUBIC: Image.Resampling.BICUBIC,
}
_FLOAT_BITS = 24  # of the significand that Pillow keeps of a box's edges


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction: ``length`` pixels become ``resized``, of which ``crop`` from ``first`` on are kept."""

    length: int
    resized: int
    first: int
    crop: int

    @property
    def box(self) -> tuple[float, float] | None:
        """The crop's edges in the picture; None if Pillow would round them and compute other numbers."""
        edges = [Fraction(self.length * at, self.resized) for at in (self.first, self.first + self.crop)]
        return (float(edges[0]), float(edges[1])) if all(map(_is_short_float, edges)) else None


def _is_short_float(edge: Fraction) -> bool:
    power_of_two = edge.denominator & (edge.denominator - 1) == 0
    return power_of_two and edge.numerator.bit_length() <= _FLOAT_BITS


@dataclass(frozen=True, slots=True)
class Frame:
    """Which part of a picture is kept."""

    across: Axis
    down: Axis

    @classmethod
    def of(cls, size: tuple[int, int], resize: int, crop: int) -> Frame | None:
        """The frame for a picture of ``size`` (width, height); None if the crop is larger than that."""
        width, height = resized(size, resize)
        if crop > min(width, height):
            return None
        left, top = round((width - crop) / 2), round((height - crop) / 2)
        return cls(Axis(size[0], width, left, crop), Axis(size[1], height, top, crop))


def resized(size: tuple[int, int], resize: int) -> tuple[int, int]:
    """Width and height once the shorter side has ``resize`` pixels; the longer is rounded down."""
    width, height = size
    longer = int(resize * max(size) / min(size))
    return (resize, longer) if width <= height else (longer, resize)


def _part(left: int, top: int, width: int, height: int) -> tuple[int, int, int, int]:
    return left, top, left + width, top + height


class ClassicProcessing(transforms.Compose):  # type: ignore[misc] # torchvision has no types
    """Called with one picture: torchvision's own four steps. ``pixels`` and ``normalise`` are for batches."""

    def __init__(
        self,
        resize: int,
        crop: int,
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: transforms.InterpolationMode = transforms.InterpolationMode.BILINEAR,
    ) -> None:
        super().__init__(
            [
                transforms.Resize(resize, interpolation),
                transforms.CenterCrop(crop),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        )
        self.resize = resize
        self.crop = crop
        self.filter = _FILTERS[interpolation]
        self._mean = torch.tensor(mean, dtype=torch.float32).view(3, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32).view(3, 1, 1)
        self._elsewhere: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def of_preset(cls, preset: Any) -> ClassicProcessing | None:
        """The equivalent of the transforms of torchvision's classification weights; None if they do more."""
        if type(preset).__name__ != "ImageClassification" or preset.interpolation not in _FILTERS:
            return None
        (resize,), (crop,) = preset.resize_size, preset.crop_size
        return cls(resize, crop, preset.mean, preset.std, preset.interpolation)

    def frame(self, size: tuple[int, int]) -> Frame | None:
        """What is kept of a picture of ``size`` (width, height); None if the crop is larger."""
        return Frame.of(size, self.resize, self.crop)

    def pixels(self, picture: Image.Image) -> torch.Tensor | None:
        """The crop: ``crop`` x ``crop`` x 3 of uint8; None unless the picture is RGB and fills it."""
        frame = self.frame(picture.size) if picture.mode == "RGB" else None
        if frame is None:
            return None
        data = bytearray(self._cropped(picture, frame).tobytes())
        return torch.frombuffer(data, dtype=torch.uint8).view(self.crop, self.crop, 3)

    def _cropped(self, picture: Image.Image, frame: Frame) -> Image.Image:
        if picture.height > picture.width:
            resized = picture.resize((frame.across.resized, frame.down.resized), self.filter)
            return resized.crop(_part(frame.across.first, frame.down.first, self.crop, self.crop))
        return self._rows_then_columns(picture, frame.across, frame.down)

    def _rows_then_columns(self, picture: Image.Image, across: Axis, down: Axis) -> Image.Image:
        """What Pillow does with pictures that are not upright, for the crop only."""
        left, right = across.box or (0.0, across.length)
        width, height = self.crop if across.box else across.resized, picture.height
        narrow = picture.resize((width, height), self.filter, (left, 0, right, height))
        if not across.box:
            narrow = narrow.crop(_part(across.first, 0, self.crop, height))
        top, bottom = down.box or (0.0, down.length)
        height = self.crop if down.box else down.resized
        low = narrow.resize((self.crop, height), self.filter, (0, top, self.crop, bottom))
        return low if down.box else low.crop(_part(0, down.first, self.crop, self.crop))

    def write(self, pixels: torch.Tensor, place: torch.Tensor) -> None:
        """A crop (height x width x 3 of uint8), normalised, into ``place`` (3 x height x width of float)."""
        place.copy_(pixels.permute(2, 0, 1)).div_(255).sub_(self._mean).div_(self._std)

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Crops (n x height x width x 3 of uint8, on any device) to n x 3 x height x width, channels last."""
        batch = pixels.permute(0, 3, 1, 2).to(torch.float32)
        mean, std = self._numbers(batch.device)
        return batch.div_(255).sub_(mean).div_(std)

    def _numbers(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        if device not in self._elsewhere:
            self._elsewhere[device] = self._mean.to(device), self._std.to(device)
        return self._elsewhere[device]


MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def classic_processing(resize: int = 256, crop: int = 224) -> ClassicProcessing:
    """ImageNet's: shorter side to ``resize`` pixels, the middle ``crop`` x ``crop``, normalised."""
    return ClassicProcessing(resize, crop, MEAN, STD)


def configured_processing(settings: Mapping[str, Any]) -> ClassicProcessing | None:
    """With ``resize`` and ``crop`` of the settings, None without either. Raises ModelLoadError."""
    if "resize" not in settings and "crop" not in settings:
        return None
    resize, crop = (
        whole_number(settings, key, default, "a number of pixels")
        for key, default in (("resize", 256), ("crop", 224))
    )
    return classic_processing(resize, crop)
