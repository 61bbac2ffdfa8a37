"""Triton's classification extension: an output as the classes with the highest values.

A client asks for it by the parameter ``classification`` of a requested output, which the server has checked
(`surface/inference/v2.py`). Labels are those of the model's ``index_to_name.json``.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from modelserver.engine.tensors.datatypes import BYTES, pack, unpack
from modelserver.engine.tensors.rows import OutputForm, OutputWish
from modelserver.engine.tensors.tensor import CLASSIFICATION

_SINGLE = struct.Struct("f")
_NARROW = frozenset({"FP16", "BF16", "FP32"})


class NotClassifiable(Exception):
    """The client asked for the classes of an output that has none."""


def classified(
    output: tuple[OutputForm, bytes], wish: OutputWish, labels: Callable[[], Mapping[str, str]]
) -> tuple[OutputForm, bytes]:
    """The output of a row as ``wish`` has it: unchanged, or BYTES of `value:index[:label]`, highest first.

    A row with fewer elements than classes asked for has them all. Raises NotClassifiable.
    """
    count = (wish.parameters or {}).get(CLASSIFICATION, 0)
    if not count:
        return output
    form, content = output
    if form.datatype in {BYTES, "BOOL"}:
        raise NotClassifiable(
            f"output '{form.name}': there are no classes, as it is {form.datatype}; numbers are needed"
        )
    values, named = unpack(form.datatype, memoryview(content)), labels()
    # Of equal values the first come first, and what is not a number last.
    best = heapq.nlargest(
        count, range(len(values)), key=lambda index: (not math.isnan(values[index]), values[index])
    )
    classes = [_class(form.datatype, values[index], index, named.get(str(index))) for index in best]
    return OutputForm(form.name, BYTES, (len(classes),)), pack(BYTES, classes)


def _class(datatype: str, value: Any, index: int, label: str | None) -> bytes:
    text = _shortest(value) if datatype in _NARROW else str(value)
    return (f"{text}:{index}" if label is None else f"{text}:{index}:{label}").encode()


def _shortest(value: float) -> str:
    """The fewest digits that are this value in single precision."""
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if _SINGLE.pack(float(text)) == _SINGLE.pack(value):
            return text
    return f"{value:.9g}"
