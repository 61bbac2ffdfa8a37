"""Real worker processes, and the memory that they share with the server."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from tests.engine.pools.conftest import Conversation

from modelserver.engine.pools import process as process_module
from modelserver.engine.wire.arena import LARGE
from modelserver.engine.wire.messages import Loaded, Predict, Row

HANDLERS = '''
import hashlib, os

bodies = []

def served(handler):
    """A handler that is not called for nothing, as it is once when it is loaded."""
    return lambda data, context: None if data is None else handler(data, context)

@served
def same(data, context):
    return [row["body"] for row in data]

@served
def keep(data, context):
    """Answers with the digest of what came in the batch before."""
    bodies.append(data[0]["body"])
    return [hashlib.sha256(bodies[-2]).hexdigest() if len(bodies) > 1 else "none" for _ in data]

@served
def die(data, context):
    os._exit(7)
'''


class Talk(Conversation):
    """A worker process with one of the handlers above."""

    sequence = 0

    async def load(self, folder: Path, handler: str) -> Talk:
        (folder / "h.py").write_text(HANDLERS)
        await self.start(folder, f"h.py:{handler}", frame_limit=1 << 28)
        message, _ = await self.next()
        assert isinstance(message, Loaded)
        return self

    def send(self, *bodies: bytes) -> None:
        rows = [Row(f"r{n}", len(body)) for n, body in enumerate(bodies)]
        self.process.send(Predict(self.sequence, rows), bodies)
        self.sequence += 1

    async def ask(self, *bodies: bytes) -> bytes:
        self.send(*bodies)
        return (await self.next())[1]

    async def end(self) -> str:
        self.process.kill()
        return await self.process.wait()


def arenas_held() -> set[int]:
    """The numbers of the arenas that this process has open or mapped."""
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    held = {int(words[4]) for words in mapped if words[-2].endswith("/memfd:modelserver")}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:modelserver"):
                held.add(os.stat(f"/proc/self/fd/{name}").st_ino)
    return held


@pytest.fixture
async def start(tmp_path):
    """Starts workers that are ended after the test; then nothing of their memory is left here."""
    talks: list[Talk] = []
    before = arenas_held()

    async def begin(handler: str) -> Talk:
        talks.append(await Talk().load(tmp_path, handler))
        return talks[-1]

    yield begin
    for talk in talks:
        await talk.end()
        await talk.lost
    assert arenas_held() <= before


async def test_bodies_of_all_sizes_share_a_batch(start):
    """Large and small rows of a batch come back as they were, empty ones too."""
    talk = await start("same")
    bodies = [os.urandom(size) for size in (LARGE, 0, 3, 1_000_000)]
    talk.send(*bodies)
    result, tail = await talk.next()

    assert [answer.size for answer in result.answers] == [len(body) for body in bodies]
    assert tail == b"".join(bodies)


async def test_handlers_may_keep_what_they_get(start):
    """A body is the handler's own, for as long as it likes."""
    from hashlib import sha256

    talk = await start("keep")
    bodies = [os.urandom(LARGE) for _ in range(3)]

    digests = [await talk.ask(body) for body in bodies]

    assert digests == [b"none", *(sha256(body).hexdigest().encode() for body in bodies[:2])]


async def test_worker_without_an_arena_answers(start, monkeypatch):
    monkeypatch.setattr(process_module.Arena, "create", lambda: None)
    before = arenas_held()
    talk = await start("same")
    body = os.urandom(1_000_000)

    assert await talk.ask(body) == body
    assert arenas_held() <= before


@pytest.mark.parametrize("by_server", [True, False], ids=["killed", "exits"])
async def test_end_of_a_worker_frees_its_memory(start, by_server):
    """Bodies that nobody has read go with the process, and so does the server's hold on them (F39)."""
    before = arenas_held()
    talk = await start("same" if by_server else "die")
    assert len(arenas_held() - before) == 1
    for _ in range(3):
        talk.send(bytes(1_000_000))
    how = await talk.end() if by_server else await talk.process.wait()
    await talk.lost

    assert how == ("was killed by SIGKILL" if by_server else "exited with status 7")
    assert arenas_held() <= before
    talk.send(bytes(1_000_000))
