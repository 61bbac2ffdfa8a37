"""Ray's driver, in its own process: ``python -m modelserver.cluster.ray_helper ADDRESS SERVER_PID``.

Ray ends its drivers when the cluster ends, and joining may hang. The process reads requests from standard
input and writes reports to standard output (:mod:`modelserver.cluster.ray_messages`); what Ray prints goes to
standard error. It ends with the server. The actors, one for each worker, do not: they are detached.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

import modelserver
from modelserver.cluster.ray_joining import NAMESPACE, Unusable, join, one_line
from modelserver.cluster.ray_messages import (
    Ended,
    Joined,
    Place,
    Placed,
    Refused,
    State,
    ToHelper,
    Watch,
    Withdraw,
    decode_to_helper,
    encode,
)
from modelserver.cluster.ray_needs import impossible, situation
from modelserver.worker.parent import die_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.cluster.ray_messages import FromHelper

# Seconds: between looks whether Ray can be reached; for that; of waiting after which an impossible demand is
# called so; for the last requests when the server has ended the talk.
_LOOKS = 1.0
_REACH_PATIENCE = 3.0
_IMPOSSIBLE_AFTER = 3.0
_LAST_PATIENCE = 3.0
# Creating and killing actors wait for Ray.
_THREADS = 8


class Places:
    """The actors of one server.

    Args:
        ray: the module, joined to the cluster.
        agent_class: the class of the actors.
        report: sends a message to the server, from any thread.
    """

    def __init__(self, ray: Any, agent_class: type, report: Callable[[FromHelper], None]) -> None:
        self._ray = ray
        self._class = ray.remote(agent_class)
        self._report = report
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        # Actors that are being created, and whether they are still wanted.
        self._creating: dict[str, bool] = {}
        # Those without a machine yet: since when, and what they ask for.
        self._waiting: dict[int, tuple[float, dict[str, Any]]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="places")

    def handle(self, request: ToHelper) -> None:
        """Performs a request; requests for one actor in their order."""
        if isinstance(request, Place):
            with self._lock:
                self._creating[request.name] = True
                self._waiting[request.id] = (time.monotonic(), request.options)
            self._threads.submit(self._place, request)
        elif isinstance(request, Watch):
            self._threads.submit(self._watch, request)
        elif not self._cancelled(request.name):
            self._threads.submit(self._withdraw, request)

    def close(self) -> None:
        """Waits for the requests that have been made."""
        self._threads.shutdown(wait=True)

    def situation(self) -> tuple[str, str]:
        """What is free while actors wait for a machine, and what no node could ever have."""
        with self._lock:
            waiting = list(self._waiting.values())
        if not waiting:
            return "", ""
        nodes = self._ray.nodes()
        words = situation(self._ray.available_resources(), self._ray.cluster_resources())
        long_since = time.monotonic() - _IMPOSSIBLE_AFTER
        reasons = {impossible(options, nodes) for since, options in waiting if since < long_since}
        return words, "; ".join(sorted(reasons - {""}))

    def _cancelled(self, name: str) -> bool:
        with self._lock:
            if name in self._creating:
                self._creating[name] = False
                return True
        return False

    def _place(self, request: Place) -> None:
        try:
            actor = self._class.options(
                name=request.name, namespace=NAMESPACE, lifetime="detached", max_restarts=0, **request.options
            ).remote()
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses; the server is told
            self._creating.pop(request.name, None)
            self._end(request.id, f"Ray refused it: {one_line(error)}")
            return
        with self._lock:
            if wanted := self._creating.pop(request.name):
                self._actors[request.name] = actor
        if not wanted:
            self._end(request.id, "it was withdrawn")
            self._kill(actor)
            return
        actor.alive.remote().future().add_done_callback(lambda up: self._placed(request, up))
        self._until_ended(request.id, request.name, actor, actor.run.remote(request.invitation))

    def _placed(self, request: Place, up: Any) -> None:
        if up.exception() is None and self._waiting.pop(request.id, None) is not None:
            self._report(Placed(request.id))

    def _watch(self, request: Watch) -> None:
        try:
            actor = self._ray.get_actor(request.name, namespace=NAMESPACE)
        except Exception as error:  # noqa: BLE001 - as above
            unknown = isinstance(error, ValueError)
            self._end(request.id, "Ray does not know it any more" if unknown else one_line(error))
            return
        with self._lock:
            self._actors[request.name] = actor
        # It is answered after the agent's end, if at all: the actor has one thread.
        self._until_ended(request.id, request.name, actor, actor.alive.remote())

    def _until_ended(self, id_: int, name: str, actor: Any, call: Any) -> None:
        """Reports the end of the actor's long call."""
        errors = self._ray.exceptions

        def ended(done: Any) -> None:
            error = done.exception()
            if isinstance(error, errors.ActorUnavailableError):
                # Out of reach for a moment, which is no end.
                threading.Timer(_LOOKS, self._threads.submit, (self._watch, Watch(id_, name))).start()
                return
            with self._lock:
                self._actors.pop(name, None)
            if not isinstance(error, errors.ActorDiedError):
                self._threads.submit(self._kill, actor)
            self._end(id_, "its agent ended" if error is None else one_line(error))

        call.future().add_done_callback(ended)

    def _kill(self, actor: Any) -> None:
        # It may have ended.
        with contextlib.suppress(Exception):
            self._ray.kill(actor)

    def _end(self, id_: int, how: str) -> None:
        self._waiting.pop(id_, None)
        self._report(Ended(id_, how))

    def _withdraw(self, request: Withdraw) -> None:
        with self._lock:
            actor = self._actors.pop(request.name, None)
        if actor is None:
            try:
                actor = self._ray.get_actor(request.name, namespace=NAMESPACE)
            except Exception:  # noqa: BLE001 - it has ended, or Ray has
                return
        self._kill(actor)


class Reporter:
    """Writes messages, from any thread."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self._lock = threading.Lock()

    def __call__(self, message: FromHelper) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._output.write(encode(message) + b"\n")
            self._output.flush()


class Requests:
    """Reads what the server asks for; ends the process with the server, also while it joins or hangs."""

    def __init__(self, source: IO[bytes]) -> None:
        self._requests: queue.SimpleQueue[ToHelper | None] = queue.SimpleQueue()
        self._joined = threading.Event()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def perform(self, places: Places) -> None:
        """Hands them to ``places`` until the server wants no more."""
        self._joined.set()
        while (request := self._requests.get()) is not None:
            places.handle(request)
        places.close()

    def _read(self, source: IO[bytes]) -> None:
        for line in source:
            self._requests.put(decode_to_helper(line))
        self._requests.put(None)
        if self._joined.is_set():
            time.sleep(_LAST_PATIENCE)
        os._exit(0)


def watch_ray(address: str, places: Places, report: Callable[[FromHelper], None]) -> None:
    """Reports for ever whether Ray can be reached, and what is free while actors wait for a machine.

    If Ray hangs, so does this: the server notices that nothing is reported.
    """
    while True:
        report(_state(address, places))
        time.sleep(_LOOKS)


def _state(address: str, places: Places) -> State:
    if lost := unreachable(address):
        return State(lost)
    try:
        return State("", *places.situation())
    except Exception as error:  # noqa: BLE001 - Ray has a dozen kinds; the server is told
        return State(one_line(error))


def unreachable(address: str) -> str:
    """Why nothing accepts connections at the address; empty if something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_PATIENCE).close()
    except OSError as error:
        return f"nothing answers at {address}: {error.strerror or error}"
    return ""


def main() -> None:
    """The process."""
    address, server_pid = sys.argv[1], int(sys.argv[2])
    die_with(server_pid)
    # uvloop leaves open what the server has, even the other end of this process's input, which would not end.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # A duplicate, as Ray and what it starts print on standard output.
    report = Reporter(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    requests = Requests(source)
    try:
        ray = join(address)
        # It imports Ray.
        from modelserver.node.ray_actor import AgentActor  # noqa: PLC0415
    except (Unusable, ImportError) as error:
        report(Refused(str(error)))
        os._exit(1)
    places = Places(ray, AgentActor, report)
    alive = sum(node["Alive"] for node in ray.nodes())
    report(Joined(ray.__version__, modelserver.__version__, alive))
    threading.Thread(target=watch_ray, args=(address, places, report), daemon=True).start()
    requests.perform(places)
    # Ray's own ending takes seconds, and nothing is left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
