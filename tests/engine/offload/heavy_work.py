import os

from modelserver.errors import BadRequest


def double(data: bytes, times: int | None) -> list[bytes]:
    return [data] * (times or 2)


def refuse(text: str) -> bytes:
    raise BadRequest(text)


def fail(text: str) -> bytes:
    raise ValueError(text)


def spin() -> bytes:
    while True:
        pass


def fill(size: int) -> int:
    return len(bytearray(size))


def whoami() -> int:
    return os.getpid()


def leave() -> int:
    os._exit(0)
