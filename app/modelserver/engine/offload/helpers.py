"""The server's side: helper processes, started on demand, for work that would block the event loop.

Threads would not do: they cannot be killed, and parsers of JSON, YAML and protobuf hold the interpreter lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import msgspec

from modelserver.engine.offload.calls import (
    CallEnded,
    HelperClosed,
    OffloadCall,
    encode,
    read_result,
    receive,
    send,
)
from modelserver.errors import InternalError, ModelServerError

_log = logging.getLogger("modelserver.offload")

P = ParamSpec("P")
R = TypeVar("R")

_decode = msgspec.msgpack.Decoder(CallEnded).decode

# Seconds to wait per second of allowed CPU time, and in addition: the machine or disk may be slow.
_PATIENCE = 10.0
_MORE_PATIENCE = 60.0


class Helpers:
    """At most ``count`` processes, each for one call at a time.

    Args:
        name: of their threads.
        count: of processes; further calls wait.
        memory: bytes of address space of each.
        refusal: the error for calls that exceed their limits.
    """

    def __init__(self, name: str, count: int, memory: int, refusal: type[ModelServerError]) -> None:
        self._memory = memory
        self._refusal = refusal
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        # Calls wait here rather than in the executor, where cancelled ones would stay queued.
        self._turns = asyncio.Semaphore(count)
        self._own = threading.local()
        self._all: set[_Helper] = set()
        self._closed = False

    async def call(self, seconds: float, function: Callable[P, R], *args: P.args, **_: P.kwargs) -> R:
        """Calls a function of the server, which may use ``seconds`` of CPU time, and returns its result.

        Raises ModelServerErrors of the function, the refusal, or InternalError if the helper fails otherwise.
        """
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            """May run long after the caller was cancelled."""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._turns.release)

        await self._turns.acquire()
        try:
            work = self._threads.submit(self._call, seconds, function, args)
        except RuntimeError as error:
            self._turns.release()
            raise InternalError("A helper process was stopped with the server.") from error
        work.add_done_callback(done)
        try:
            result: R = await asyncio.wrap_future(work)
        finally:
            # Its error refers to this frame, and thereby to the arguments: they would outlive the call.
            del work
        return result

    def _call(self, seconds: float, function: Callable[..., R], args: tuple[object, ...]) -> R:
        """Runs in a thread of the pool; each thread has its own helper."""
        call = OffloadCall(function.__module__, function.__name__, seconds, msgspec.Raw(encode(args)))
        ended = self._perform(call)
        if ended.error is None:
            result: R = read_result(function, ended.value)
            return result
        if ended.error == MemoryError.__name__:
            self._end()
            raise self._refusal("Reading it needs more memory than is allowed.")
        kind = _error_of(ended.error, ModelServerError)
        if kind is None:
            _log.error("Failure in a helper process:\n%s", ended.text)
            raise InternalError()
        raise kind(ended.text)

    def _perform(self, call: OffloadCall) -> CallEnded:
        while not self._closed:
            fresh = (helper := getattr(self._own, "helper", None)) is None
            if helper is None:
                helper = self._own.helper = self._start()
            try:
                return helper.perform(call)
            except TimeoutError:
                how = "did not answer"
            except (HelperClosed, OSError):
                code = helper.process.wait()
                if code == -signal.SIGXCPU:
                    self._end()
                    raise self._refusal(
                        f"Reading it takes more than {call.seconds:g} s of CPU time."
                    ) from None
                how = f"ended with status {code}"
            self._end()
            # An idle helper may have just exited: retry with a new one.
            if fresh:
                break
        else:
            how = "was stopped with the server"
        raise InternalError(f"A helper process {how}.")

    def _start(self) -> _Helper:
        try:
            helper = _Helper(self._memory)
        except OSError as error:
            reason = error.strerror or error
            raise InternalError(f"A helper process cannot be started: {reason}.") from error
        self._all.add(helper)
        return helper

    def _end(self) -> None:
        helper: _Helper | None = self._own.__dict__.pop("helper", None)
        if helper is not None:
            self._all.discard(helper)
            helper.end()

    def close(self) -> None:
        """Ends the processes; running calls fail."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for helper in list(self._all):
            helper.end()

    def __del__(self) -> None:
        self.close()


def _error_of(name: str, base: type[ModelServerError]) -> type[ModelServerError] | None:
    """The error of this name; extensions have some of their own."""
    if base.__name__ == name:
        return base
    kinds = (_error_of(name, kind) for kind in base.__subclasses__())
    return next(filter(None, kinds), None)


class _Helper:
    def __init__(self, memory: int) -> None:
        self._connection, helper_end = socket.socketpair()
        with helper_end:
            self.process = subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-m", "modelserver.engine.offload", str(helper_end.fileno()), str(memory)],
                # `-m` searches the current directory first, so nobody else may write to it.
                cwd="/",
                stdin=subprocess.DEVNULL,
                # The server's parent may wait for its output to end.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[helper_end.fileno()],
                start_new_session=True,
            )

    def perform(self, call: OffloadCall) -> CallEnded:
        """Sends the call and waits for its end. Raises HelperClosed, OSError, TimeoutError."""
        self._connection.settimeout(call.seconds * _PATIENCE + _MORE_PATIENCE)
        send(self._connection, call)
        return _decode(receive(self._connection))

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self.process.kill()
        self.process.wait()
        self._connection.close()
