"""ClassicProcessing: the batch's way gives the numbers of torchvision's four steps, to the last bit."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.models import EfficientNet_B1_Weights, ResNet152_Weights
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import pil_to_tensor

from modelserver_handlers.pictures.classic import MEAN, STD, ClassicProcessing, Frame


def noise(width, height):
    """A picture in which every rounding shows."""
    return Image.frombytes(
        "RGB", (width, height), random.Random(width + height).randbytes(3 * width * height)
    )


def reference(processing, picture):
    """What torchvision's resize and crop leave, height x width x 3."""
    resize, crop, *_ = processing.transforms
    return pil_to_tensor(crop(resize(picture))).permute(1, 2, 0)


@settings(max_examples=40)
@given(
    width=st.integers(20, 400),
    height=st.integers(20, 400),
    sizes=st.sampled_from([(64, 56), (58, 56), (32, 32), (40, 33)]),
    interpolation=st.sampled_from([InterpolationMode.BILINEAR, InterpolationMode.BICUBIC]),
)
def test_crops_are_torchvisions(width, height, sizes, interpolation):
    processing = ClassicProcessing(*sizes, MEAN, STD, interpolation)
    picture = noise(width, height)
    pixels = processing.pixels(picture)

    assert torch.equal(pixels, reference(processing, picture))


@pytest.mark.parametrize("size", [(720, 720), (500, 375), (375, 500), (256, 256), (1024, 300), (224, 224)])
def test_usual_sizes_are_torchvisions(size):
    processing = ClassicProcessing(256, 224, MEAN, STD)
    picture = noise(*size)
    pixels = processing.pixels(picture)

    assert torch.equal(pixels, reference(processing, picture))


def test_boxes_are_exact_for_powers_of_two():
    """A side that is a power of two long after resizing needs no more than the crop; 341 is not one."""
    frame = Frame.of((500, 375), 256, 224)

    assert (frame.across.resized, frame.down.resized) == (341, 256)
    assert frame.across.box is None
    assert frame.down.box == (16 * 375 / 256, 240 * 375 / 256)


def test_floats_are_torchvisions():
    processing = ClassicProcessing(32, 28, MEAN, STD)
    pictures = [noise(50, 40), noise(40, 70)]
    expected = torch.stack([processing(picture) for picture in pictures])
    crops = [reference(processing, picture) for picture in pictures]
    places = torch.empty(2, 3, 28, 28)
    for crop, place in zip(crops, places, strict=True):
        processing.write(crop, place)
    together = processing.normalise(torch.stack(crops))

    assert torch.equal(places, expected)
    assert torch.equal(together, expected)
    assert together.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("mode", "size"), [("L", (300, 300)), ("RGB", (300, 200))])
def test_other_modes_are_left_to_torchvision(mode, size):
    processing = ClassicProcessing(256 if mode == "L" else 100, 224, MEAN, STD)
    assert processing.pixels(noise(*size).convert(mode)) is None


@pytest.mark.parametrize(
    "weights",
    [ResNet152_Weights.IMAGENET1K_V1, ResNet152_Weights.IMAGENET1K_V2, EfficientNet_B1_Weights.IMAGENET1K_V1],
)
def test_presets_are_taken_over(weights):
    preset = weights.transforms()
    processing = ClassicProcessing.of_preset(preset)
    picture = noise(300, 320)

    assert (processing.resize, processing.crop) == (preset.resize_size[0], preset.crop_size[0])
    assert torch.equal(processing(picture), preset(picture))


def test_other_presets_are_not_taken_over():
    preset = ResNet152_Weights.IMAGENET1K_V1.transforms()
    preset.interpolation = InterpolationMode.NEAREST

    assert ClassicProcessing.of_preset(preset) is None
    assert ClassicProcessing.of_preset(lambda picture: picture) is None
