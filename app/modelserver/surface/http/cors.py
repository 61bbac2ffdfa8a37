"""What pages of other origins may do (reference 4.4). Off unless a setting enables it.

Unlike TorchServe, preflight requests of browsers are answered at once and need no token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.surface.http.answers import clean

if TYPE_CHECKING:
    from modelserver.models.settings.settings import Settings

Pairs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Cors:
    """The headers for every answer, as configured; names in lower case."""

    pairs: Pairs

    def missing(self, present: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """The headers that an answer does not have yet; those set by a handler take precedence."""
        names = {name.lower() for name in present}
        return [(name, value) for name, value in self.pairs if name not in names]

    def lines(self, present: bytes) -> bytes:
        """Header lines, with line ends, that an answer with the lines ``present`` does not have yet."""
        names = [line.partition(b":")[0] for line in present.split(b"\r\n")] if present else []
        return b"".join(name + b": " + value + b"\r\n" for name, value in self.missing(names))


def configured_pairs(settings: Settings) -> Pairs:
    """The headers as configured."""
    configured = (
        (b"access-control-allow-origin", settings.cors_allowed_origin),
        (b"access-control-allow-methods", settings.cors_allowed_methods),
        (b"access-control-allow-headers", settings.cors_allowed_headers),
    )
    return tuple((name, clean(text).encode("latin-1", "replace")) for name, text in configured if text)


def is_preflight(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether this is a preflight request: a browser asks if it may send another one."""
    if method != "OPTIONS":
        return False
    return {b"origin", b"access-control-request-method"} <= {name.lower() for name, _ in headers}
