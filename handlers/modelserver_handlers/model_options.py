"""``optimize``, ``precision`` and ``warmup`` of model-config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelserver_handlers.errors import ModelLoadError

_OPTIMIZE = {"auto": True, "on": True, "off": False}
_PRECISION = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How the network may be run.

    ``optimize_asked`` is whether the author wrote ``optimize: auto``. ``shape`` is that of one row of input,
    None where the handler must know it.
    """

    optimize: bool = True
    optimize_asked: bool = False
    precision: str = "fp32"
    warmup: bool = True
    shape: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ModelOptions:
        """From the keys at the top of the document or under ``handler``, where they win.

        Raises ModelLoadError that names the key and what is allowed.
        """
        optimize = _choice("optimize", _value(document, "optimize"), _OPTIMIZE)
        precision = _choice("precision", _value(document, "precision"), _PRECISION)
        warmup, shape = _warmup(_value(document, "warmup"))
        return cls(optimize is not False, optimize is True, precision or "fp32", warmup, shape)


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


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
