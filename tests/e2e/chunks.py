"""A client that sees an answer as it comes: its head, then chunk by chunk."""

from __future__ import annotations

import json
import re

from tests.e2e.raw import connect
from tests.e2e.serving import ROOT


class BrokenOff(Exception):
    """The connection ended within the answer."""


class ChunkReader:
    """One request on a connection of its own, sent at once."""

    def __init__(
        self, port: int, path: str, order: object, *, version: str = "1.1", method: str = "POST"
    ) -> None:
        body = json.dumps(order).encode()
        self._socket = connect(port, 30)
        self._socket.sendall(
            f"{method} {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._received = b""

    def __enter__(self) -> ChunkReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in lower case."""
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in headers.items()}

    def chunk(self) -> bytes:
        """The next chunk; nothing for the last one. Raises BrokenOff."""
        size = int(self._until(b"\r\n"), 16)
        content = self._exactly(size + 2)
        assert content.endswith(b"\r\n")
        return content[:-2]

    def chunks(self) -> list[bytes]:
        """All that are left. Raises BrokenOff."""
        return list(iter(self.chunk, b""))

    def rest(self) -> bytes:
        """What comes until the connection ends."""
        while self._more():
            pass
        rest, self._received = self._received, b""
        return rest

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            if not self._more():
                raise BrokenOff(self._received)
        result, self._received = self._received.split(mark, 1)
        return result

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            if not self._more():
                raise BrokenOff(self._received)
        result, self._received = self._received[:size], self._received[size:]
        return result

    def _more(self) -> bool:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._received += data
        return bool(data)


def examples_under(heading: str) -> list[str]:
    """The blocks of Python under a heading of docs/streaming.md."""
    text = (ROOT / "docs" / "streaming.md").read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"(?ms)^```python\n(.*?)^```", section)
