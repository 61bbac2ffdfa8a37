"""What pages of other origins may do (reference 4.4). Off unless a key is set.

Different from TorchServe: a browser's preflight is answered at once and needs no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.http.answers import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelserver.settings.settings import Settings

Pairs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Cors:
    """The headers of every answer, as they are set; names in lower case."""

    pairs: Pairs

    @classmethod
    def of(cls, settings: Settings) -> Cors | None:
        """Those of the settings, None if none is set."""
        given = (
            (b"access-control-allow-origin", settings.cors_allowed_origin),
            (b"access-control-allow-methods", settings.cors_allowed_methods),
            (b"access-control-allow-headers", settings.cors_allowed_headers),
        )
        pairs = tuple((name, clean(text).encode("latin-1", "replace")) for name, text in given if text)
        return cls(pairs) if pairs else None

    def missing(self, present: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Those whose names an answer does not have; a handler's own word counts."""
        names = {name.lower() for name in present}
        return [(name, value) for name, value in self.pairs if name not in names]

    def lines(self, present: bytes) -> bytes:
        """The same as header lines, each with its end, for an answer that has the lines ``present``."""
        names = [line.partition(b":")[0] for line in present.split(b"\r\n")] if present else []
        return b"".join(name + b": " + value + b"\r\n" for name, value in self.missing(names))


def is_preflight(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a browser asks if it may send a request."""
    if method != "OPTIONS":
        return False
    return {b"origin", b"access-control-request-method"} <= {name.lower() for name, _ in headers}
