"""From weights to a version: intervals of [0, 1), computed when weights or readiness change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

_BITS = 0xFFFFFFFF
_SCALE = 2.0**-32


class Interval(NamedTuple):
    """The points below ``end``, from the end of the interval before."""

    end: float
    version: str


def intervals(weights: Mapping[str, float], ready: Container[str]) -> list[Interval]:
    """The interval of each version, in the order of the weights; without one if no version is ready.

    A version that is not ready keeps its place: only its own points go to the others, in proportion to their
    weights, so that points of the others stay where they are.
    """
    able = {version: weight for version, weight in weights.items() if weight and version in ready}
    total = sum(able.values())
    result: list[Interval] = []
    begin = 0.0
    for version, weight in weights.items():
        if version in able:
            result.append(Interval((begin + weight) / 100, version))
        else:
            taken = begin
            for other, share in able.items():
                taken += weight * share / total
                result.append(Interval(taken / 100, other))
        begin += weight
    return _joined(result)


def _joined(pieces: Sequence[Interval]) -> list[Interval]:
    """Without empty intervals; neighbours of one version are one, and the last has no end."""
    joined: list[Interval] = []
    for each in pieces:
        if joined and each.version == joined[-1].version:
            joined.pop()
        if each.end > (joined[-1].end if joined else 0.0):
            joined.append(each)
    if joined:
        joined[-1] = Interval(1.0, joined[-1].version)
    return joined


def shares(pieces: Sequence[Interval]) -> dict[str, float]:
    """The percent of the points that each version has."""
    percent: dict[str, float] = {}
    begin = 0.0
    for each in pieces:
        percent[each.version] = percent.get(each.version, 0.0) + (each.end - begin) * 100
        begin = each.end
    return percent


def point_of(value: bytes) -> float:
    """A point of [0, 1) that depends only on the value, in any process and on any machine."""
    # Multiplied by the golden ratio, as checksums of similar texts are similar.
    return (crc32(value) * 0x9E3779B1 & _BITS) * _SCALE
