"""What ends a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelserver.ext.grpc.http2.frames import Code


class Broken(Exception):
    """The client broke the rules: the connection ends with ``code``."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
