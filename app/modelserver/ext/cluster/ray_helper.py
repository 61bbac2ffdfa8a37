"""Ray's driver, in its own process: ``python -m modelserver.ext.cluster.ray_helper ADDRESS SERVER_PID``.

Ray ends its drivers when the cluster ends, and joining may hang. The process reads requests from standard
input and writes reports to standard output (:mod:`modelserver.ext.cluster.ray_messages`); what Ray prints
goes to standard error. It ends with the server. The actors, one for each worker, do not: they are detached.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

import modelserver
from modelserver.ext.cluster import ray_messages as messages
from modelserver.ext.cluster.ray_joining import NAMESPACE, Unusable, join, one_line

# Whether the nodes of a Ray cluster could ever meet a demand, and what is free, in words.

_LIST = re.compile(r"(!?)in\((.*)\)")
_GIB = 1 << 30
# Letters of the ids of nodes that name them.
NODE_LETTERS = 8


def needed(options: Mapping[str, Any]) -> dict[str, float]:
    """The amounts that an actor with these options takes, by Ray's names."""
    amounts = {
        "CPU": options.get("num_cpus", 0),
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def impossible(options: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Why none of these nodes (as in ``ray.nodes()``) could run the actor, were it idle; else empty."""
    alive = [node for node in nodes if node["Alive"]]
    selector: Mapping[str, str] = options.get("label_selector", {})
    fitting = [node for node in alive if _has_labels(node, options)]
    if selector and not fitting:
        return "no node has the labels " + ", ".join(f"{name}={value}" for name, value in selector.items())
    amounts = needed(options)
    totals = [node["Resources"] for node in fitting]
    if any(all(total.get(name, 0) >= amount for name, amount in amounts.items()) for total in totals):
        return ""
    where = "no node with these labels has" if selector else "no node has"
    for name, amount in amounts.items():
        most = max((total.get(name, 0) for total in totals), default=0)
        if most < amount:
            return f"{where} {_amount(name, amount)}, at most {_amount(name, most)}"
    return f"{where} " + " with ".join(_amount(name, amount) for name, amount in amounts.items())


def lacking(
    options: Mapping[str, Any], count: int, nodes: Iterable[Mapping[str, Any]], free: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """The amounts that nodes lack for ``count`` such actors, by the first letters of their ids.

    ``free``: the free amounts by id. Empty if a node has room; nodes that could never have it are left out.
    """
    lacks = {}
    for node in nodes:
        if not node["Alive"] or not _has_labels(node, options):
            continue
        amounts = {name: count * amount for name, amount in needed(options).items()}
        if any(node["Resources"].get(name, 0) < amount for name, amount in amounts.items()):
            continue
        has = free.get(node["NodeID"], {})
        missing = {name: amount - has.get(name, 0) for name, amount in amounts.items()}
        missing = {name: amount for name, amount in missing.items() if amount > 0}
        if not missing:
            return {}
        lacks[node["NodeID"][:NODE_LETTERS]] = missing
    return lacks


def _has_labels(node: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    labels, selector = node.get("Labels", {}), options.get("label_selector", {})
    return all(_admits(expression, labels.get(name)) for name, expression in selector.items())


def situation(free: Mapping[str, float], total: Mapping[str, float]) -> str:
    """Describes the free and total resources, as Ray sums them over the nodes."""
    names = [name for name in total if not name.startswith("node:") and name != "object_store_memory"]
    order = sorted(names, key=lambda name: ({"CPU": 0, "GPU": 1, "memory": 2}.get(name, 3), name))
    sums = ", ".join(f"{_number(name, free.get(name, 0))} of {_amount(name, total[name])}" for name in order)
    return f"Ray has free {sums}" if sums else "Ray has no nodes"


def _amount(name: str, amount: float) -> str:
    return f"{_number(name, amount)} {'GiB memory' if name == 'memory' else name}"


def _number(name: str, amount: float) -> str:
    return f"{round(amount / _GIB if name == 'memory' else amount, 2):g}"


def _admits(expression: str, value: str | None) -> bool:
    """Whether a label's value fits: ``x``, ``!x``, ``in(x, y)`` or ``!in(x, y)``."""
    listed = _LIST.fullmatch(expression)
    if listed:
        negated, values = bool(listed[1]), {part.strip() for part in listed[2].split(",")}
    else:
        negated, values = expression.startswith("!"), {expression.removeprefix("!")}
    return (value in values) != negated


# Seconds: between looks whether Ray can be reached; for that; of waiting after which an impossible demand is
# called so; for the last requests when the server has ended the talk.
_LOOKS = 1.0
_REACH_PATIENCE = 3.0
_IMPOSSIBLE_AFTER = 3.0
# Seconds that an actor may take to start where a node has room for it.
_STARTS = 10.0
_LAST_PATIENCE = 3.0
# Creating and killing actors wait for Ray.
_THREADS = 8
# Ray's word for a head that was started anew at the address: what has joined the one before is of no use.
_ANEW = "WrongClusterID"


@dataclass(slots=True)
class _Waiting:
    """Actors without a machine yet, since a time; ``fitted_at``: when a node last had room for them."""

    request: messages.PlaceActors
    since: float = field(default_factory=time.monotonic)
    fitted_at: float = -math.inf


_Watched: TypeAlias = messages.PlaceActors | messages.WatchActors


class ActorPlaces:
    """The actors of one server.

    Args:
        ray: the module, joined to the cluster.
        agent_class: the class of the actors.
        report: sends a message to the server, from any thread.
    """

    def __init__(self, ray: Any, agent_class: type, report: Callable[[messages.FromHelper], None]) -> None:
        self._ray = ray
        self._class = ray.remote(agent_class)
        self._report = report
        self._lock = threading.Lock()
        self._actors: dict[str, list[Any]] = {}
        # The actors that are being created, and whether they are still needed.
        self._creating: dict[str, bool] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="places")

    def handle(self, request: messages.ToHelper) -> None:
        """Performs a request; requests for one actor in their order."""
        if isinstance(request, messages.PlaceActors):
            with self._lock:
                self._creating[request.name] = True
                self._waiting[request.id] = _Waiting(request)
            self._threads.submit(self._place, request)
        elif isinstance(request, messages.WatchActors):
            self._threads.submit(self._watch, request)
        elif not self._cancelled(request.name):
            self._threads.submit(self._withdraw, request)

    def close(self) -> None:
        """Waits for the requests that have been made."""
        self._threads.shutdown(wait=True)

    def situation(self) -> tuple[str, str]:
        """Describes free resources while actors wait for a machine, and demands that no node can meet."""
        with self._lock:
            waiting = list(self._waiting.values())
        if not waiting:
            return "", ""
        nodes = self._ray.nodes()
        words = situation(self._ray.available_resources(), self._ray.cluster_resources())
        long_since = time.monotonic() - _IMPOSSIBLE_AFTER
        reasons = {impossible(each.request.options, nodes) for each in waiting if each.since < long_since}
        return words, "; ".join(sorted(reasons - {""}))

    def lacks(self) -> dict[int, dict[str, dict[str, float]]]:
        """What nodes lack for the actors that wait (:class:`~.ray_messages.RayState`).

        Not for those that had room a moment ago: they may be starting there.
        """
        with self._lock:
            waiting = list(self._waiting.values())
        return self._lacks_of(waiting) if waiting else {}

    def _lacks_of(self, waiting: Iterable[_Waiting]) -> dict[int, dict[str, dict[str, float]]]:
        nodes, result = self._ray.nodes(), {}
        free = self._ray._private.state.available_resources_per_node()
        for each in waiting:
            request, now = each.request, time.monotonic()
            lacks = lacking(request.options, max(1, request.ranks), nodes, free)
            if not lacks:
                each.fitted_at = now
            elif now - each.fitted_at > _STARTS:
                result[request.id] = lacks
        return result

    def _cancelled(self, name: str) -> bool:
        with self._lock:
            if name in self._creating:
                self._creating[name] = False
                return True
        return False

    def _place(self, request: messages.PlaceActors) -> None:
        actors: list[Any] = []
        try:
            # Whether there is room is known before the actor takes it.
            with contextlib.suppress(Exception):
                self._lacks_of([self._waiting[request.id]])
            for name, options in zip(
                messages.actor_names(request.name, request.ranks), self._options(request), strict=True
            ):
                actors.append(
                    self._class.options(
                        name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=0, **options
                    ).remote()
                )
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses; the server is told
            self._creating.pop(request.name, None)
            if _ANEW in str(error):
                self._report(_left_behind())
            self._end(request.id, f"Ray refused it: {one_line(error)}")
            self._give_back(request, actors)
            return
        with self._lock:
            if needed := self._creating.pop(request.name):
                self._actors[request.name] = list(actors)
        if not needed:
            self._end(request.id, "it was withdrawn")
            self._give_back(request, actors)
            return
        up: list[Any] = []
        for actor, invitation in zip(actors, request.invitations, strict=True):
            actor.alive.remote().future().add_done_callback(lambda call: self._placed(request, up, call))
            self._until_ended(request, actor, actor.run.remote(invitation))

    def _options(self, request: messages.PlaceActors) -> Iterator[dict[str, Any]]:
        """The options of each actor; in a group, each has a bundle of its own."""
        if not request.strategy:
            yield request.options
            return
        own = dict(request.options)
        selector = own.pop("label_selector", None)
        group = self._ray.util.placement_group(
            [needed(own)] * request.ranks,
            strategy=request.strategy,
            name=request.name,
            lifetime="detached",
            **({"bundle_label_selector": [selector] * request.ranks} if selector else {}),
        )
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for index in range(request.ranks):
            yield {**own, "scheduling_strategy": strategy(group, placement_group_bundle_index=index)}

    def _placed(self, request: messages.PlaceActors, up: list[Any], call: Any) -> None:
        if call.exception() is not None:
            return
        with self._lock:
            up.append(call)
            complete = len(up) == len(request.invitations)
        if complete and self._waiting.pop(request.id, None) is not None:
            self._report(messages.ActorsPlaced(request.id))

    def _find(self, request: messages.ToHelper) -> tuple[list[Any], str]:
        """The actors that Ray knows, and the reason why others are missing."""
        actors, missing = [], ""
        for name in messages.actor_names(request.name, request.ranks):
            try:
                actors.append(self._ray.get_actor(name, namespace=NAMESPACE))
            except Exception as error:  # noqa: BLE001, PERF203 - it has ended, or Ray has
                unknown = isinstance(error, ValueError)
                missing = "Ray does not know it any more" if unknown else one_line(error)
        return actors, missing

    def _watch(self, request: messages.WatchActors) -> None:
        actors, missing = self._find(request)
        with self._lock:
            self._actors[request.name] = list(actors)
        if missing:
            self._end(request.id, missing, len(actors))
        if not actors:
            self._give_back(request, [])
        for actor in actors:
            self._watch_actor(request, actor)

    def _watch_actor(self, request: _Watched, actor: Any) -> None:
        # It is answered after the agent's end, if at all: the actor has one thread.
        self._until_ended(request, actor, actor.alive.remote())

    def _until_ended(self, request: _Watched, actor: Any, call: Any) -> None:
        """Reports the end of the actor's long call."""
        errors = self._ray.exceptions

        def ended(done: Any) -> None:
            error = done.exception()
            if isinstance(error, errors.ActorUnavailableError):
                # A node that is briefly unreachable has not failed.
                again = self._threads.submit, (self._watch_actor, request, actor)
                threading.Timer(_LOOKS, *again).start()
                return
            with self._lock:
                left = [each for each in self._actors.pop(request.name, []) if each is not actor]
                if left:
                    self._actors[request.name] = left
            dead = isinstance(error, errors.ActorDiedError)
            if not dead or (request.ranks and not left):
                gone = self._give_back if not left else self._kill
                self._threads.submit(gone, request, [] if dead else [actor])
            self._end(request.id, "its agent ended" if error is None else one_line(error), len(left))

        call.future().add_done_callback(ended)

    def _kill(self, request: messages.ToHelper, actors: list[Any]) -> None:
        for actor in actors:
            # The actor may have ended.
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def _give_back(self, request: messages.ToHelper, actors: list[Any]) -> None:
        """Kills these actors, the last ones, and frees what was reserved for all."""
        self._kill(request, actors)
        if request.ranks:
            util = self._ray.util
            with contextlib.suppress(Exception):
                util.remove_placement_group(util.get_placement_group(request.name))

    def _end(self, id_: int, how: str, left: int = 0) -> None:
        self._waiting.pop(id_, None)
        self._report(messages.ActorEnded(id_, how, left))

    def _withdraw(self, request: messages.WithdrawActors) -> None:
        with self._lock:
            actors = self._actors.pop(request.name, None)
        self._give_back(request, self._find(request)[0] if actors is None else actors)


class Reporter:
    """Writes messages, from any thread."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self._lock = threading.Lock()

    def __call__(self, message: messages.FromHelper) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._output.write(messages.encode(message) + b"\n")
            self._output.flush()


class Requests:
    """Reads what the server asks for; ends the process with the server, also while it joins or hangs."""

    def __init__(self, source: IO[bytes]) -> None:
        self._requests: queue.SimpleQueue[messages.ToHelper | None] = queue.SimpleQueue()
        self._joined = threading.Event()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def perform(self, places: ActorPlaces) -> None:
        """Hands them to ``places`` until the server wants no more."""
        self._joined.set()
        while (request := self._requests.get()) is not None:
            places.handle(request)
        places.close()

    def _read(self, source: IO[bytes]) -> None:
        for line in source:
            self._requests.put(messages.decode_to_helper(line))
        self._requests.put(None)
        if self._joined.is_set():
            time.sleep(_LAST_PATIENCE)
        os._exit(0)


def watch_ray(address: str, places: ActorPlaces, report: Callable[[messages.FromHelper], None]) -> None:
    """Reports for ever whether Ray can be reached, and what is free while actors wait for a machine.

    If Ray hangs, so does this: the server notices that nothing is reported.
    """
    while True:
        report(_state(address, places))
        time.sleep(_LOOKS)


def end_with(server_pid: int) -> None:
    """Ends this process once its parent is gone, whose end of the input a process may have inherited."""
    while os.getppid() == server_pid:
        time.sleep(_LOOKS)
    os._exit(0)


def _left_behind() -> messages.ClusterRefused:
    """Asks the server for another helper."""
    return messages.ClusterRefused("the cluster was started anew, and has to be joined again")


def _state(address: str, places: ActorPlaces) -> messages.RayState | messages.ClusterRefused:
    if lost := unreachable(address):
        return messages.RayState(lost)
    try:
        return messages.RayState("", *places.situation(), places.lacks())
    except Exception as error:  # noqa: BLE001 - Ray has a dozen kinds; the server is told
        return _left_behind() if _ANEW in str(error) else messages.RayState(one_line(error))


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
    threading.Thread(target=end_with, args=(server_pid,), daemon=True).start()
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
        # This module imports Ray.
        from modelserver.ext.cluster.node.ray_actor import AgentActor  # noqa: PLC0415
    except (Unusable, ImportError) as error:
        report(messages.ClusterRefused(str(error)))
        os._exit(1)
    places = ActorPlaces(ray, AgentActor, report)
    alive = sum(node["Alive"] for node in ray.nodes())
    report(messages.ClusterJoined(ray.__version__, modelserver.__version__, alive))
    threading.Thread(target=watch_ray, args=(address, places, report), daemon=True).start()
    requests.perform(places)
    # Ray's own ending takes seconds, and nothing is left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
