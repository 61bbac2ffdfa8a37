"""A network between nodes and a server that can be slow, stop, or break."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16
# Pieces that are on their way in one direction.
_PIECES = 64

TO_SERVER, TO_NODE = "to the server", "to the node"
BOTH = (TO_SERVER, TO_NODE)


class Proxy:
    """Forwards connections to ``port`` of this machine from ``self.port``, in a thread of its own.

    ``latency``: seconds added in each direction. ``rate``: bytes per second in each direction; 0: no limit.
    Both may be changed at any time.
    """

    def __init__(self, port: int, *, latency: float = 0.0, rate: float = 0.0) -> None:
        self.latency = latency
        self.rate = rate
        self.port = 0
        self.accepted = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._open = {way: asyncio.Event() for way in BOTH}
        # In the order of their connections.
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stall(self, *ways: str) -> None:
        """Forwards nothing any more; with ways, only nothing in these directions."""
        for way in ways or BOTH:
            self._loop.call_soon_threadsafe(self._open[way].clear)

    def resume(self) -> None:
        """Forwards again, first what had to wait."""
        for way in BOTH:
            self._loop.call_soon_threadsafe(self._open[way].set)

    def cut(self, *, last: bool = False) -> None:
        """Breaks all connections, or that which was made last; new ones can be made."""
        asyncio.run_coroutine_threadsafe(self._cut(-2 if last else 0), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        for event in self._open.values():
            event.set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        await self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self, first: int = 0) -> None:
        for writer in [*self._writers][first:]:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer: None, back: None}
        for source, target, way in ((reader, back, TO_SERVER), (there, writer, TO_NODE)):
            task = self._loop.create_task(self._forward(source, target, way))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)
        delivery = self._loop.create_task(self._deliver(under_way, target, way))
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(_CHUNK):
                    await under_way.put((self._loop.time() + self.latency, data))
            await under_way.put((self._loop.time() + self.latency, b""))
            await delivery
        finally:
            delivery.cancel()
            self._writers.pop(target, None)

    async def _deliver(self, under_way, target, way):
        with contextlib.suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._open[way].wait()
                if not data:
                    target.close()
                    return
                target.write(data)
                await target.drain()
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
