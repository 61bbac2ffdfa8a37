import asyncio


class Transport(asyncio.Transport):
    """Keeps what is written, of which ``unsent`` bytes wait for the client; closes when it is told to.

    ``half_closes``: it can end its own direction alone; ``has_socket``: there is one with options.
    """

    def __init__(self, *, half_closes: bool = False, has_socket: bool = False) -> None:
        ends = {"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 8080)}
        super().__init__({**ends, "socket": self} if has_socket else ends)
        self.written = b""
        self.closed = self.aborted = self.ended = False
        self.reading = True
        self.unsent = 0
        self._half_closes = half_closes

    def setsockopt(self, *_: object) -> None:
        """As of the socket below."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
