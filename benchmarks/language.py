"""What OpenAI's API costs: streams of a pretended engine, and embeddings in shared batches.

Beside LitServe with the same engine and the same network, in turns; with ``--vllm`` vLLM's engine beside its
own front end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.language_work import BATCH, PIECES
from benchmarks.options import Options, run
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, ROOT, BenchmarkError, Running, cpu_meter, model_server, running
from benchmarks.works import Question
from modelserver.tools.tune.own_server import family, free_ports

PATIENCE: Final = 290  # seconds until an engine has started
_CHAT = """
import modelserver
from benchmarks.language_work import pieces
class Chat(modelserver.ChatModel):
    async def chat(self, request):
        for piece in pieces():
            yield piece
"""
_VECTORS = """
import modelserver
from benchmarks.language_work import Embedder
class Vectors(modelserver.EmbeddingModel):
    def load(self, context):
        self.embedder = Embedder()
    def embed(self, texts):
        return self.embedder.vectors(texts)
"""
# Streams that are open at the same time: a piece at the beginning, and one when all are.
_HOLD = """
import asyncio, modelserver
class Hold(modelserver.ChatModel):
    concurrency = 1 << 20
    def load(self, context):
        self.waiting, self.all = 0, asyncio.Event()
    async def chat(self, request):
        yield " token"
        self.waiting += 1
        if self.waiting == request.max_tokens:
            self.all.set()
        await self.all.wait()
        yield " token"
"""
_CHAT_BODY = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
_TEXT = "What is a tensor, and how does it differ?"


class Turn(NamedTuple):
    """One measurement: answers, and what they were like.

    The figures are pieces a second; µs for each of the main process, of all, and of all but vLLM's engine; ms
    until the first.
    """

    answers: int
    figures: tuple[float, ...]


async def _send(port: int, message: bytes, tokens: int = 0) -> tuple[int, float]:
    """How many pieces an answer had, and the seconds until the first; so many ``tokens`` if there are any."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 20)
    began, first, count, last = time.perf_counter(), 0.0, 0, b""
    writer.write(message)
    while data := await reader.read(1 << 18):
        count += data.count(b'" token"') + data.count(b'"index":0,"embedding":')
        if not first and (count or b"data: {" in data):
            first = time.perf_counter() - began
        last = (last + data)[-1024:]
    writer.close()
    if tokens and b'"completion_tokens":%d' % tokens not in last:
        raise BenchmarkError(f"{tokens} tokens were to come: {last.decode(errors='replace')}")
    return tokens or count, first


def request(path: str, body: Mapping[str, object]) -> bytes:
    content, close = json.dumps(body).encode(), ("Connection", "close")
    return Question(path, content, "application/json", (close,)).message()


async def _turn(server: Running, message: bytes, connections: int, seconds: float, tokens: int = 0) -> Turn:
    """Closed loops on so many connections at a time."""
    front, everything = cpu_meter(server.pid, alone=True), cpu_meter(server.pid)
    began, engine = time.perf_counter(), _engine_seconds(server.pid)
    results: list[tuple[int, float]] = []

    async def loop() -> None:
        while time.perf_counter() - began < seconds:
            results.append(await _send(server.port, message, tokens))

    await asyncio.gather(*(loop() for _ in range(connections)))
    took = time.perf_counter() - began
    pieces, used = sum(count for count, _ in results), everything()
    first = statistics.median(first for _, first in results)
    costs = (front(), used, used + engine - _engine_seconds(server.pid))
    each = (1e6 * cost / max(pieces, 1) for cost in costs)
    return Turn(len(results), (pieces / took, *each, 1e3 * first))


def rounds(
    servers: Mapping[str, Running], message: bytes, count: int, options: Options, tokens: int = 0
) -> dict[str, list[Turn]]:
    """The measurements of each server, in turns; the first round does not count."""
    turns: dict[str, list[Turn]] = {name: [] for name in servers}
    for repetition in range(options.reps + 1):
        for name, server in servers.items():
            with _alone(server, servers.values()):
                measured = asyncio.run(_turn(server, message, count, options.duration, tokens))
            turns[name] += [measured] if repetition else []
    return turns


@contextlib.contextmanager
def _alone(server: Running, servers: Iterable[Running]) -> Iterator[None]:
    """Stops the others' processes: engines that wait take the processor to which vLLM binds them all."""
    others = [each for other in servers if other is not server for each in family(other.pid)]
    try:
        for each in others:
            each.suspend()
        yield
    finally:
        # A server last: it replaces a spawner that it finds stopped, whose workers would lose their parent.
        for each in reversed(others):
            each.resume()


def _engine_seconds(pid: int) -> float:
    """Processor seconds of vLLM's engine below this process."""
    engine = [each for each in family(pid) if each.name().startswith("VLLM::")]
    return sum(sum(each.cpu_times()[:2]) for each in engine)


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Running]:
    store = folder / "store"
    store.mkdir(parents=True)
    for name, code in (("chat", _CHAT), ("vectors", _VECTORS), ("hold", _HOLD)):
        (store / f"{name}.py").write_text(code, "utf-8")
    variables = {"PYTHONPATH": str(ROOT)}
    with model_server(store, folder / "server", threads=1, variables=variables) as server:
        server.register("chat.py", "chat")
        server.register("hold.py", "hold")
        server.register("vectors.py", "vectors", batch_size=BATCH, max_batch_delay=5)
        yield server


async def _hold(server: Running, count: int) -> None:
    """Opens so many streams, of which each ends when all are open, and prints their marks."""
    message = request("/v1/chat/completions", {**_CHAT_BODY, "model": "hold", "max_tokens": count})
    process = psutil.Process(server.pid)
    before, most, streams = process.memory_info().rss, 0, []
    for position in range(count):
        streams.append(asyncio.create_task(_send(server.port, message)))
        if position % 100 == 0:
            await asyncio.sleep(0.01)
    while not all(stream.done() for stream in streams):
        most = max(most, process.memory_info().rss)
        await asyncio.sleep(0.1)
    whole = sum(stream.result()[0] == 2 for stream in streams)
    memory = Mark("memory of the main process for each", (most - before) / count / 1e3, "<=", 20.0, " kB")
    print(Mark(f"{count} streams at once: whole ones", whole, ">=", count), memory, sep="\n")


@contextlib.contextmanager
def peer(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[Running]:
    """Another server, whose command ends with a port."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    with running([*command, str(port)], port, folder, variables, patience=PATIENCE) as server:
        yield server


def medians(turns: Sequence[Turn]) -> list[float]:
    """Of each figure."""
    return [statistics.median(column) for column in zip(*(turn.figures for turn in turns), strict=True)]


def measure(options: Options, folder: Path) -> None:
    """All works in turns."""
    chat = request("/v1/chat/completions", _CHAT_BODY)
    vectors = request("/v1/embeddings", {"model": "vectors", "input": _TEXT, "encoding_format": "float"})
    python = None if options.peers is None else options.peers / "litserve" / "bin" / "python"
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_ours(folder / "ours"))
        if options.streams:
            asyncio.run(_hold(ours, options.streams))
            return
        works = (("chat", chat, (1, 16, 64)), ("vectors", vectors, (1, BATCH, 2 * BATCH)))
        for work, message, connections in works:
            with contextlib.ExitStack() as peers:
                servers = {"modelserver": ours}
                if python is not None:
                    command = (str(python), "-m", "benchmarks.peers.apps.litserve_language", work)
                    other = peer(folder / work, command, {"PYTHONPATH": str(ROOT)})
                    servers["LitServe"] = peers.enter_context(other)
                rows: list[list[str]] = []
                for count in connections:
                    for name, turns in rounds(servers, message, count, options).items():
                        rate, front, everything, _, first = map(number, medians(turns))
                        rows.append([f"{work}, {count}", name, rate, front, everything, first])
                print(table(["", "", "a second", "µs of the main process", "of all", "first after ms"], rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m benchmarks language", description=__doc__)
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of one measurement (default: 3)")
    parser.add_argument("--reps", type=int, default=3, help="repetitions in turns, after one more")
    parser.add_argument("--streams", type=int, help="only this: so many streams that are open at once")
    parser.add_argument("--peers", type=Path, help="the folder of python -m benchmarks peers: litserve, vllm")
    parser.add_argument("--vllm", action="store_true", help="only vLLM's engine, with the peer vllm")
    parser.add_argument("--size", default="tiny", choices=("tiny", "medium"), help="of vLLM's model")
    parser.add_argument("--long", action="store_true", help="vLLM's prompts have 900 tokens, answers 256")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 8, 64, 256), help="of vLLM's engine")
    options = parser.parse_args(arguments)
    print(f"answers of {PIECES} pieces, batches of {BATCH}")
    if options.streams:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        if options.vllm:
            from benchmarks.language_vllm import measure as measure_vllm  # noqa: PLC0415 - it has these clients

            measure_vllm(options, str(options.peers.absolute() / "vllm" / "bin" / "python"), Path(folder))
        else:
            measure(options, Path(folder))
    return 0


if __name__ == "__main__":
    run(main)
