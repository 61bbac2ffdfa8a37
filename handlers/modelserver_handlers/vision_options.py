"""``handler`` of model-config.yaml, as far as it says how pictures get to the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelserver_handlers.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU, NVJPEG = "cpu", "nvjpeg"


@dataclass(frozen=True, slots=True)
class VisionOptions:
    """``decode``: ``cpu`` or ``nvjpeg``. ``fast_decode``: let JPEGs be decoded at a fraction of their size.

    ``cuda_graphs``: record the network once per batch size and replay it. All but ``decode: cpu`` are off
    unless asked for; the first two change numbers a little.
    """

    decode: str = CPU
    fast_decode: bool = False
    cuda_graphs: bool = False

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> VisionOptions:
        """From the mapping ``handler``. Raises ModelLoadError naming the key and what it allows."""
        decode = settings.get("decode", CPU)
        if decode not in (CPU, NVJPEG):
            raise ModelLoadError(f"handler: decode must be {CPU} or {NVJPEG}, got {decode!r}")
        return cls(decode, _flag(settings, "fast_decode"), _flag(settings, "cuda_graphs"))


def _flag(settings: Mapping[str, Any], key: str) -> bool:
    value = settings.get(key, False)
    if not isinstance(value, bool):
        raise ModelLoadError(f"handler: {key} must be true or false, got {value!r}")
    return value
