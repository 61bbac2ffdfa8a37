"""When requests come, independent of the answers."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

Pattern = Literal["poisson", "bursty", "diurnal"]


def poisson(rate: float, chance: Random) -> Iterator[float]:
    """Ascending times without end, ``rate`` per second, each independent of all others."""
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def bursty(rate: float, chance: Random, *, on: float = 0.5, off: float = 0.5) -> Iterator[float]:
    """Poisson arrivals while ON, none while OFF, ``rate`` per second on average.

    Both phases last exponentially distributed seconds with the means ``on`` and ``off``.
    """
    inside = poisson(rate * (on + off) / on, chance)
    shift, end = 0.0, chance.expovariate(1 / on)
    for at in inside:
        while at > end:
            shift += chance.expovariate(1 / off)
            end += chance.expovariate(1 / on)
        yield at + shift


def diurnal(rate: float, chance: Random) -> Iterator[float]:
    """Poisson arrivals whose rate swings like a sine by 60 % of its mean, once in 20 seconds."""
    period, swing = 20.0, 0.6
    for at in poisson(rate * (1 + swing), chance):
        share = (1 + swing * math.sin(2 * math.pi * at / period)) / (1 + swing)
        if chance.random() < share:
            yield at


OPEN: dict[Pattern, Callable[[float, Random], Iterator[float]]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
}
