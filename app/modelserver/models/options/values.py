"""The allowed values of options: a check, and its wording for messages and the page of keys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from modelserver.engine.demand import Demand
from modelserver.models.settings.key import LARGEST

LARGEST_SIZE = 2**53 - 1  # bytes


@dataclass(frozen=True, slots=True)
class Values:
    """``read`` converts a value of the file, or raises ValueError with a text that ends a sentence.

    ``allowed`` describes the values in words that fit before ``is needed``. As parameters they have ``type``;
    numbers are from ``least`` to ``most``, texts one of ``choices``, if given.
    """

    allowed: str
    read: Callable[[object], Any]
    type: Literal["string", "integer", "boolean"] = "string"
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()


class CorrectedError(Exception):
    """A value out of range, corrected to ``value``."""

    def __init__(self, message: str, value: int) -> None:
        super().__init__(message)
        self.value = value


def whole(least: int, most: int = LARGEST, *, corrects: bool = False) -> Values:
    """A whole number of at least ``least``; a smaller one is refused, or with ``corrects`` becomes that."""
    allowed = f"a whole number of at least {least}"

    def read(value: object) -> int:
        if _is_whole(value) and least <= value <= most:
            return value
        if _is_whole(value) and value > most:
            raise ValueError(f"a whole number of at most {most} is needed")
        text = f"{allowed} is needed"
        raise CorrectedError(text, least) if corrects and _is_whole(value) else ValueError(text)

    return Values(allowed, read, "integer", least, most)


def raised_to(least: int) -> Values:
    """A whole number; a smaller one becomes ``least``, as in TorchServe."""
    return whole(least, corrects=True)


def boolean() -> Values:
    """True or false, as YAML means them."""

    return _fitting("true or false", lambda value: isinstance(value, bool), "boolean")


def path() -> Values:
    """A path of URLs; whether a model may have it is checked elsewhere."""
    return _fitting("a path such as /api", lambda value: isinstance(value, str) and value.startswith("/"))


def _fitting(allowed: str, fits: Callable[[object], bool], type_: Any = "string") -> Values:
    def read(value: object) -> object:
        if fits(value):
            return value
        raise ValueError(f"{allowed} is needed")

    return Values(allowed, read, type_)


def anything(content: str, type_: Literal["string", "integer"] = "string") -> Values:
    """Any value; it is checked elsewhere."""
    return Values(content, lambda value: value, type_)


def flag_or_auto() -> Values:
    """True or false, or ``auto``, which counts as not given."""

    def read(value: object) -> bool | None:
        if value == "auto" or isinstance(value, bool):
            return value if isinstance(value, bool) else None
        raise ValueError("true, false or auto is needed")

    return Values("`true`, `false` or `auto`", read, choices=("auto", "true", "false"))


def one_of(*choices: str) -> Values:
    """One of these words, in any case."""
    allowed = f"one of {', '.join(filter(None, choices))}"

    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise ValueError(f"{allowed} is needed")

    return Values(allowed, read, choices=choices)


def device_list() -> Values:
    """Numbers of devices, each once."""
    number = whole(0)

    def read(value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise ValueError("a list of whole numbers is needed")  # noqa: TRY004 - as for all values
        devices = tuple(number.read(item) for item in value)
        if len(set(devices)) != len(devices):
            raise ValueError("a list that names no device twice is needed")
        return devices

    return Values("a list of whole numbers", read)


def mapping(content: str) -> Values:
    """A mapping; its content is checked elsewhere."""
    return replace(_fitting("a mapping", lambda value: isinstance(value, dict)), allowed=content)


def by_version(content: str) -> Values:
    """A mapping with versions as keys; a YAML file reads one such as 1.0 as a number."""

    def read(value: object) -> dict[str, Any]:
        whole = mapping(content).read(value)
        return {str(key): read(each) if isinstance(each, dict) else each for key, each in whole.items()}

    return Values(content, read)


def excerpt(value: object) -> str:
    """A value as quoted in messages: on one line, shortened."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:79] + "…"


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# The option ``resources``: what a worker needs on the machine that it is placed on.

LOCAL = "local"


def resources() -> Values:
    """``local``, or a mapping of resources as Ray counts them; a :class:`Demand` when read."""
    return Values("`local`, or a mapping of resources", read_resources)


def read_resources(value: object) -> Demand | str:
    """The value as a demand. Raises ValueError with a text that ends a sentence."""
    if value == LOCAL:
        return LOCAL
    if not isinstance(value, dict):
        raise ValueError("local or a mapping is needed")  # noqa: TRY004 - as for all values
    unknown = [name for name in value if name not in _READ]
    if unknown:
        raise ValueError(f"{excerpt(unknown[0])} is unknown, one of {', '.join(_READ)} is needed")
    return Demand(**{name: _READ[name](name, part) for name, part in value.items()})


def parse_resources(text: str) -> Demand | str:
    """Parses JSON, and reads it as :func:`read_resources`."""
    return read_resources(json.loads(text))


def _amount(name: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(f"{name}={excerpt(value)}: a number of at least 0 is needed")


def _bytes(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_SIZE:
        return value
    raise ValueError(f"{name}={excerpt(value)}: a number of bytes is needed")


def _amounts(name: str, value: object) -> dict[str, float]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _amount(f"{name}.{key}", amount) for key, amount in value.items()}
    raise ValueError(f"{name}={excerpt(value)}: a mapping of names to numbers is needed")


def _texts(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(x, str) for pair in value.items() for x in pair):
        return dict(value)
    raise ValueError(f"{name}={excerpt(value)}: a mapping of texts to texts is needed")


_READ: dict[str, Callable[[str, object], Any]] = {
    "num_cpus": _amount,
    "num_gpus": _amount,
    "memory": _bytes,
    "custom": _amounts,
    "label_selector": _texts,
}
