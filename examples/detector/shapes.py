"""Pictures of shapes, drawn from a seed, and the positions of the shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

NAMES = {1: "circle", 2: "square", 3: "triangle"}


@dataclass(frozen=True, slots=True)
class Shape:
    """``label`` is a key of NAMES; ``box`` is x1, y1, x2, y2 in pixels."""

    label: int
    box: tuple[int, int, int, int]


def draw_shapes(seed: int, size: tuple[int, int] = (96, 96)) -> tuple[Image.Image, list[Shape]]:
    """A picture of ``size`` (width, height) with one to four shapes that do not touch."""
    chance = random.Random(seed)
    ground = tuple(chance.randrange(120, 256) for _ in range(3))
    picture = Image.new("RGB", size, ground)
    pen = ImageDraw.Draw(picture)
    shapes: list[Shape] = []
    for _ in range(chance.randint(1, 4)):
        side = chance.randrange(18, 40)
        left, top = chance.randrange(size[0] - side), chance.randrange(size[1] - side)
        shape = Shape(chance.choice(list(NAMES)), (left, top, left + side, top + side))
        if not any(_touch(shape.box, other.box) for other in shapes):
            shapes.append(shape)
            _draw(pen, shape, tuple(chance.randrange(0, 100) for _ in range(3)))
    return picture, shapes


def _touch(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _draw(pen: ImageDraw.ImageDraw, shape: Shape, colour: tuple[int, ...]) -> None:
    left, top, right, bottom = shape.box
    if shape.label == 1:
        pen.ellipse(shape.box, fill=colour)
    elif shape.label == 2:
        pen.rectangle(shape.box, fill=colour)
    else:
        pen.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)
