"""Servers that answer with given bytes, whether these are HTTP or not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server that does this for each connection."""

    tasks: list[asyncio.Task[None]] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.append(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def answering(*answers: bytes) -> Serve:
    """Gives these answers on each connection, and closes it; the last one again and again if there is one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        while len(answers) == 1:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[0])

    return serve
