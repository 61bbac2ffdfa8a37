"""Settings under ``handler`` in model-config.yaml that built-in handlers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modelserver_handlers.errors import ModelLoadError


def handler_settings(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping ``handler`` in model-config.yaml, empty if absent."""
    settings = document.get("handler")
    return settings if isinstance(settings, Mapping) else {}


def whole_number(
    settings: Mapping[str, Any], key: str, default: int, what: str = "a whole number of at least 1"
) -> int:
    """A whole number of at least 1. Raises ModelLoadError naming the key."""
    return int(_checked(settings, key, default, _is_size, what))


def probability(settings: Mapping[str, Any], key: str, default: float) -> float:
    """A number from 0 to 1. Raises ModelLoadError naming the key."""
    return float(_checked(settings, key, default, _is_share, "a number from 0 to 1"))


def _flag(settings: Mapping[str, Any], key: str) -> bool:
    return bool(_checked(settings, key, False, lambda value: isinstance(value, bool), "true or false"))


def _checked(
    settings: Mapping[str, Any], key: str, default: Any, allows: Callable[[Any], bool], what: str
) -> Any:
    value = settings.get(key, default)
    if key in settings and not allows(value):
        raise ModelLoadError(f"handler: {key} must be {what}, got {value!r}")
    return value


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


CPU, NVJPEG = "cpu", "nvjpeg"


@dataclass(frozen=True, slots=True)
class VisionOptions:
    """``decode``: ``cpu`` or ``nvjpeg``. ``fast_decode``: let JPEGs be decoded at a fraction of their size.

    ``cuda_graphs``: record the network once per batch size and replay it. ``decode`` defaults to ``cpu``,
    the rest to off; the first two change results slightly.
    """

    decode: str = CPU
    fast_decode: bool = False
    cuda_graphs: bool = False

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> VisionOptions:
        """From the mapping ``handler``. Raises ModelLoadError naming the key and what it allows."""
        decode = _checked(settings, "decode", CPU, (CPU, NVJPEG).__contains__, f"{CPU} or {NVJPEG}")
        return cls(decode, _flag(settings, "fast_decode"), _flag(settings, "cuda_graphs"))


_OPTIMIZE = {"auto": True, "on": True, "off": False}
_PRECISION = {each: each for each in ("fp32", "tf32", "bf16", "int8")}
_PRECISION |= {"float32": "fp32", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the network may be run.

    ``optimize_requested``: the author wrote ``optimize: auto``. ``precision`` is fp32, bf16 or int8;
    ``tf32`` is whether GPUs may round float32 to TF32, None if the author leaves it open. ``shape`` is that
    of one row of input, None if only the handler knows it. ``calibration`` names the rows for int8.
    """

    optimize: bool = True
    optimize_requested: bool = False
    precision: str = "fp32"
    tf32: bool | None = None
    warmup: bool = True
    shape: tuple[int, ...] | None = None
    calibration: str | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> NetworkOptions:
        """From the keys at the top of the document or under ``handler``, which take precedence.

        Raises ModelLoadError that names the key and what is allowed.
        """
        optimize = _choice("optimize", _value(document, "optimize"), _OPTIMIZE)
        precision = _choice("precision", _value(document, "precision"), _PRECISION)
        warmup, shape = _warmup(_value(document, "warmup"))
        calibration = _checked(
            handler_settings(document),
            "calibration",
            None,
            lambda value: value is None or (isinstance(value, str) and bool(value)),
            "the name of a file or folder in the archive",
        )
        tf32 = {"fp32": False, "tf32": True}.get(precision)
        used = "fp32" if precision in (None, "tf32") else precision
        return cls(optimize is not False, optimize is True, used, tf32, warmup, shape, calibration)


def _value(document: Mapping[str, Any], key: str) -> Any:
    own = document.get("handler")
    return own[key] if isinstance(own, Mapping) and key in own else document.get(key)


def _choice(key: str, value: Any, choices: Mapping[str, Any]) -> Any:
    if value is None:
        return None
    # YAML reads a bare `off` as false.
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value).lower()
    if text not in choices:
        raise ModelLoadError(f"model-config.yaml: {key} must be one of {', '.join(choices)}, got {value!r}")
    return choices[text]


def _warmup(value: Any) -> tuple[bool, tuple[int, ...] | None]:
    if value is None or isinstance(value, bool):
        return value is not False, None
    shape = value.get("shape") if isinstance(value, Mapping) and set(value) == {"shape"} else None
    if not isinstance(shape, list) or not shape or not all(_is_size(size) for size in shape):
        raise ModelLoadError(
            "model-config.yaml: warmup must be true, false, or a mapping with the shape of one row of input,"
            f" such as {{shape: [3, 224, 224]}}; got {value!r}"
        )
    return True, tuple(shape)
