import random

import pytest
import torch
from PIL import Image
from tests.opcodes import opcodes_of
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.functional import pil_to_tensor

from modelserver_handlers.pictures.classic import Axis, Frame
from modelserver_handlers.pictures.resampling import resize_crops, taps, weights_of

FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


def by_pillow(picture, frame, filter_):
    """The frame's crop, height x width x 3."""
    resized = picture.resize((frame.across.resized, frame.down.resized), filter_)
    left, top = frame.across.first, frame.down.first
    crop = resized.crop((left, top, left + frame.across.crop, top + frame.down.crop))
    return pil_to_tensor(crop).permute(1, 2, 0)


@pytest.mark.parametrize("filter_", FILTERS)
@pytest.mark.parametrize("size", [(90, 90), (301, 200), (640, 480), (64, 64), (40, 33), (700, 64)])
def test_bytes_are_pillows(size, filter_):
    chance = random.Random(size[0])
    pictures = [Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1])) for _ in range(2)]
    frame = Frame.of(size, 64, 56)
    crops = resize_crops([pil_to_tensor(picture) for picture in pictures], [frame, frame], filter_)

    assert [crop.shape for crop in crops] == [(56, 56, 3)] * 2
    assert all(
        torch.equal(crop, by_pillow(picture, frame, filter_))
        for crop, picture in zip(crops, pictures, strict=True)
    )


@pytest.mark.parametrize("filter_", FILTERS)
def test_pictures_of_many_sizes_are_resized_at_once(filter_):
    chance = random.Random(1)
    sizes = [(chance.randint(64, 700), chance.randint(40, 64)) for _ in range(12)] + [(3000, 2000)]
    pictures = [Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1])) for size in sizes]
    frames = [frame for size in sizes if (frame := Frame.of(size, 64, 56))]
    crops = resize_crops([pil_to_tensor(picture) for picture in pictures], frames, filter_)

    assert all(
        torch.equal(crop, by_pillow(picture, frame, filter_))
        for crop, picture, frame in zip(crops, pictures, frames, strict=True)
    )


def test_weights_of_a_new_size_take_few_steps_of_python():
    """This holds for any size: other threads get the interpreter's lock soon."""

    def build():
        for axis in (frame.across, frame.down):
            made = taps(axis, Image.Resampling.BILINEAR)
            weights_of([made], made.length, torch.device("cpu"))

    counts = []
    for size in ((301, 257), (4001, 3001)):
        frame = Frame.of(size, 256, 224)
        taps.cache_clear()
        counts.append(opcodes_of(build))

    assert counts[0] == counts[1] < 3000


class Counting(TorchDispatchMode):
    """Counts torch's operations, each of which is a launch on a GPU, but for views."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_pictures_of_many_sizes_take_one_launch_more_each():
    def launches(sizes):
        frames = [frame for size in sizes if (frame := Frame.of(size, 64, 56))]
        batch = [torch.zeros(3, height, width, dtype=torch.uint8) for width, height in sizes]
        with Counting() as counting:
            resize_crops(batch, frames, Image.Resampling.BILINEAR)
        return counting.count

    many = [(160 + at, 150 + at) for at in range(32)]

    assert launches(many) == launches(many[:1] * 32) == launches(many[:1]) + 31


def test_parts_of_weights_are_exact_in_tf32():
    """At most eleven bits besides the sign, so that matrix products that round their factors stay exact."""
    edge = taps(Axis(40, 64, 0, 64), Image.Resampling.BICUBIC)
    parts = weights_of([edge], edge.length, torch.device("cpu"))
    high, low = parts.double().chunk(2, dim=1)

    assert edge.weights.max() > 1 << 22
    assert parts.abs().max() <= 1 << 11
    assert (high * (1 << 12) + low).sum(dim=2).sub(1 << 22).abs().max() < 4


def test_upright_pictures_differ_by_two_at_most(picture):
    upright = picture(1, (240, 400))
    frame = Frame.of(upright.size, 64, 56)
    (crop,) = resize_crops([pil_to_tensor(upright)], [frame], Image.Resampling.BILINEAR)
    difference = crop.int() - by_pillow(upright, frame, Image.Resampling.BILINEAR).int()

    assert difference.abs().max() <= 2


def test_extremes_do_not_overflow():
    frame = Frame(Axis(1000, 10, 1, 8), Axis(700, 10, 1, 8))
    batch = [torch.full((3, 700, 1000), value, dtype=torch.uint8) for value in (0, 255)]
    black, white = resize_crops(batch, [frame, frame], Image.Resampling.BICUBIC)

    assert (int(black.max()), int(white.min())) == (0, 255)
