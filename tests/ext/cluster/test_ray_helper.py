"""The helper, with a played Ray."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from modelserver.ext.cluster import ray_helper
from modelserver.ext.cluster import ray_messages as messages
from modelserver.ext.cluster.ray_helper import ActorPlaces, _state, unreachable


class ActorDiedError(Exception):
    """Stands in for Ray's class."""


class ActorUnavailableError(Exception):
    """Stands in for Ray's class."""


class PlayedActor:
    """An actor whose calls are answered by the test."""

    def __init__(self):
        self.calls: dict[str, list[Future[None]]] = {"alive": [], "run": []}
        self.invitations: list[str] = []
        self.alive = SimpleNamespace(remote=lambda: self._call("alive"))
        self.run = SimpleNamespace(remote=self._run)

    def _run(self, invitation):
        self.invitations.append(invitation)
        return self._call("run")

    def _call(self, name):
        call = Future()
        self.calls[name].append(call)
        return SimpleNamespace(future=lambda: call)


class PlayedRay:
    """Ray, with one actor that it creates."""

    exceptions = SimpleNamespace(ActorDiedError=ActorDiedError, ActorUnavailableError=ActorUnavailableError)

    def __init__(self):
        self.actor = PlayedActor()
        # Actors of a group; an actor that is named later is created for it.
        self.actors: dict[str, PlayedActor] = {}
        self.groups: dict[str, Any] = {}
        self.util = SimpleNamespace(
            placement_group=self._group,
            get_placement_group=lambda name: name,
            remove_placement_group=self.groups.pop,
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=self._in_group),
        )
        self.options: dict[str, Any] = {}
        self.killed: list[PlayedActor] = []
        self.known = True
        self.error: Exception | None = None
        self.free = {"12345678abc": {"CPU": 1}}
        self._private = SimpleNamespace(state=SimpleNamespace(available_resources_per_node=lambda: self.free))
        self.may_create = threading.Event()
        self.may_create.set()

    def remote(self, _class):
        def options(**options):
            self.options = options
            return SimpleNamespace(remote=self._create)

        return SimpleNamespace(options=options)

    def _group(self, bundles, *, name, **options):
        self.groups[name] = bundles, options
        return name

    @staticmethod
    def _in_group(name, placement_group_bundle_index):
        return name, placement_group_bundle_index

    def _create(self):
        assert self.may_create.wait(10)
        if self.error is not None:
            raise self.error
        name = self.options["name"]
        return self.actors.setdefault(name, PlayedActor()) if ":" in name else self.actor

    def kill(self, actor):
        self.killed.append(actor)

    def get_actor(self, name, namespace):
        assert namespace == "modelserver"
        if not self.known:
            raise ValueError(name)
        return self.actors[name] if ":" in name else self.actor

    def nodes(self):
        return [{"Alive": True, "NodeID": "12345678abc", "Resources": {"CPU": 2}, "Labels": {}}]

    def available_resources(self):
        return {"CPU": 1}

    def cluster_resources(self):
        return {"CPU": 2}


@pytest.fixture
def ray():
    return PlayedRay()


@pytest.fixture
def reports():
    return []


@pytest.fixture
def places(ray, reports):
    made = ActorPlaces(ray, object, reports.append)
    yield made
    made.close()


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it does not come to be"
        time.sleep(0.005)


_PLACE = messages.PlaceActors(1, "a", ["the-invitation"], {"num_cpus": 1})


@pytest.fixture
def placed(places, ray):
    """The actor, which was created and has its invitation."""
    places.handle(_PLACE)
    until(lambda: ray.actor.invitations)
    return ray.actor


def test_an_actor_is_created_detached_and_its_end_reported(placed, ray, reports):
    assert reports == []
    placed.calls["alive"][0].set_result(None)

    assert reports == [messages.ActorsPlaced(1)]
    assert ray.actor.invitations == ["the-invitation"]
    assert ray.options == {
        "name": "a",
        "namespace": "modelserver",
        "lifetime": "detached",
        "max_restarts": 0,
        "num_cpus": 1,
    }

    placed.calls["run"][0].set_exception(ActorDiedError("The actor is dead because its node has died."))

    assert reports == [messages.ActorsPlaced(1), messages.ActorEnded(1, "is dead because its node has died.")]
    assert ray.killed == []


def test_an_actor_that_cannot_run_its_agent_is_killed(placed, ray, reports):
    """It would keep its resources."""
    placed.calls["run"][0].set_exception(RuntimeError("ModuleNotFoundError: No module named 'x'"))
    until(lambda: ray.killed)
    assert reports == [messages.ActorEnded(1, "ModuleNotFoundError: No module named 'x'")]


def test_an_actor_out_of_reach_is_looked_for_again(placed, ray, reports, monkeypatch):
    monkeypatch.setattr(ray_helper, "_LOOKS", 0.01)
    placed.calls["run"][0].set_exception(ActorUnavailableError("no answer"))
    until(lambda: len(placed.calls["alive"]) == 2)
    assert reports == []
    placed.calls["alive"][1].set_exception(ActorDiedError("it died"))

    assert reports == [messages.ActorEnded(1, "it died")]
    assert ray.killed == []


def test_what_ray_refuses_has_ended(places, ray, reports):
    ray.error = ValueError("bad options")
    places.handle(_PLACE)
    until(lambda: reports)

    assert reports == [messages.ActorEnded(1, "Ray refused it: bad options")]

    assert unreachable("127.0.0.1:1") == "nothing answers at 127.0.0.1:1: Connection refused"


def test_cluster_that_was_started_anew_needs_another_helper(places, ray, reports):
    refused = messages.ClusterRefused("the cluster was started anew, and has to be joined again")
    ray.error = RuntimeError("RPC error: WrongClusterID: Perhaps the client is accessing GCS")
    places.handle(_PLACE)
    until(lambda: reports)
    assert reports[0] == refused

    ray.error = None
    places.handle(_PLACE)
    ray.nodes = Mock(side_effect=RuntimeError("WrongClusterID"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert _state(f"127.0.0.1:{listener.getsockname()[1]}", places) == refused


def test_an_actor_that_is_withdrawn_while_it_is_created_is_killed(places, ray, reports):
    ray.may_create.clear()
    places.handle(_PLACE)
    places.handle(messages.WithdrawActors("a"))
    ray.may_create.set()
    until(lambda: ray.killed)

    assert ray.killed == [ray.actor]
    assert ray.actor.invitations == []
    assert reports == [messages.ActorEnded(1, "it was withdrawn")]


def test_actors_of_an_earlier_helper_are_killed_and_watched_by_name(places, ray, reports):
    places.handle(messages.WithdrawActors("earlier"))
    until(lambda: ray.killed)
    places.handle(messages.WatchActors(2, "running"))
    until(lambda: ray.actor.calls["alive"])
    assert reports == []
    ray.actor.calls["alive"][0].set_exception(ActorDiedError("it died"))
    until(lambda: reports)
    ray.known = False
    places.handle(messages.WithdrawActors("gone"))
    places.handle(messages.WatchActors(3, "gone"))
    until(lambda: len(reports) == 2)

    assert reports == [
        messages.ActorEnded(2, "it died"),
        messages.ActorEnded(3, "Ray does not know it any more"),
    ]
    assert ray.killed == [ray.actor]


def test_the_situation_is_looked_up_while_an_actor_waits(places, ray, monkeypatch):
    assert places.situation() == ("", "")
    places.handle(messages.PlaceActors(1, "a", ["{}"], {"num_cpus": 4}))
    assert places.situation() == ("Ray has free 1 of 2 CPU", "")
    monkeypatch.setattr(ray_helper, "_IMPOSSIBLE_AFTER", -1.0)
    assert places.situation() == ("Ray has free 1 of 2 CPU", "no node has 4 CPU, at most 2 CPU")
    until(lambda: ray.actor.invitations)
    ray.actor.calls["alive"][0].set_result(None)
    assert places.situation() == ("", "")


def test_nodes_lack_what_an_actor_waits_for(places, ray, monkeypatch):
    """Once a node has room, the actor may be starting there."""
    places.handle(messages.PlaceActors(1, "a", ["{}"], {"num_cpus": 2}))
    places.handle(messages.PlaceActors(2, "b", ["{}"], {"num_cpus": 1}))
    places.handle(messages.PlaceActors(3, "c", ["{}"], {"num_cpus": 9}))
    until(lambda: len(ray.actor.invitations) == 3)
    assert places.lacks() == {1: {"12345678": {"CPU": 1}}}
    ray.free = {"12345678abc": {"CPU": 2}}
    assert places.lacks() == {}
    ray.free = {}
    assert places.lacks() == {}
    monkeypatch.setattr(ray_helper, "_STARTS", -1.0)
    assert places.lacks() == {1: {"12345678": {"CPU": 2}}, 2: {"12345678": {"CPU": 1}}}
    ray.actor.calls["alive"][0].set_result(None)
    assert len(places.lacks()) == 1


def test_a_group_has_its_places_together(places, ray, reports):
    options = {"num_cpus": 0.5, "num_gpus": 1, "label_selector": {"zone": "a"}}
    places.handle(messages.PlaceActors(1, "g", ["first", "second"], options, "PACK"))
    until(lambda: [actor.invitations for actor in ray.actors.values()] == [["first"], ["second"]])
    first, second = ray.actors["g:0"], ray.actors["g:1"]
    assert ray.groups["g"] == (
        [{"CPU": 0.5, "GPU": 1}] * 2,
        {"strategy": "PACK", "lifetime": "detached", "bundle_label_selector": [{"zone": "a"}] * 2},
    )
    assert ray.options["scheduling_strategy"] == ("g", 1)
    assert "label_selector" not in ray.options
    first.calls["alive"][0].set_result(None)
    assert reports == []
    second.calls["alive"][0].set_result(None)
    assert reports == [messages.ActorsPlaced(1)]
    second.calls["run"][0].set_exception(ActorDiedError("it died"))
    assert reports[1:] == [messages.ActorEnded(1, "it died", 1)]
    assert "g" in ray.groups
    first.calls["run"][0].set_result(None)
    until(lambda: "g" not in ray.groups)

    assert reports[2:] == [messages.ActorEnded(1, "its agent ended")]
    assert ray.killed == [first]


def test_a_withdrawn_group_is_removed(places, ray, reports):
    places.handle(messages.PlaceActors(1, "g", ["first", "second"], {"num_cpus": 1}, "SPREAD"))
    until(lambda: len(ray.actors) == 2)
    places.handle(messages.WithdrawActors("g", 2))
    until(lambda: "g" not in ray.groups)
    assert ray.killed == list(ray.actors.values())

    ray.groups["earlier"] = ray.groups["gone"] = None
    ray.actors = {"earlier:0": PlayedActor(), "earlier:1": PlayedActor()}
    places.handle(messages.WatchActors(2, "earlier", 2))
    until(lambda: all(actor.calls["alive"] for actor in ray.actors.values()))
    places.handle(messages.WithdrawActors("earlier", 2))
    until(lambda: "earlier" not in ray.groups)
    ray.known = False
    places.handle(messages.WatchActors(3, "gone", 2))
    until(lambda: "gone" not in ray.groups)
    assert messages.ActorEnded(3, "Ray does not know it any more") in reports

    ray.error = ValueError("bad options")
    places.handle(messages.PlaceActors(4, "h", ["first", "second"], {"num_cpus": 1}, "PACK"))
    until(lambda: messages.ActorEnded(4, "Ray refused it: bad options") in reports and "h" not in ray.groups)


def start(folder, ray, pid=None, inherited=2):
    """The real process with a module ``ray`` of our own."""
    (folder / "ray.py").write_text(ray)
    return subprocess.Popen(
        [sys.executable, "-m", "modelserver.ext.cluster.ray_helper", "127.0.0.1:1", str(pid or os.getpid())],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[inherited],
    )


def test_only_messages_are_written(tmp_path):
    noise = "import os\nprint('noise')\nos.write(1, b'more noise')\n__version__ = '2.40.0'\n"
    with start(tmp_path, noise) as process:
        output = process.stdout.read()

    (line,) = output.splitlines()
    assert json.loads(line)["type"] == "refused"
    assert "Ray 2.40.0" in json.loads(line)["reason"]
    assert process.returncode == 1


def test_it_keeps_no_file_of_its_server(tmp_path):
    listing = "import os\nopen(__file__ + '.up', 'w').write(' '.join(os.listdir('/proc/self/fd')))\n1 / 0"
    high = os.dup2(0, 200)
    with start(tmp_path, listing, inherited=high) as process:
        os.close(high)
        process.stdout.read()

    assert "200" not in (tmp_path / "ray.py.up").read_text().split()


def test_process_ends_with_its_server(tmp_path):
    with start(tmp_path, "import time\nopen(__file__ + '.up', 'w').close()\ntime.sleep(600)") as process:
        until((tmp_path / "ray.py.up").exists)
        process.communicate(timeout=30)

    assert process.returncode == 0

    with start(tmp_path, "import time\ntime.sleep(600)", pid=1) as process:
        process.wait(timeout=60)
    assert process.returncode == 0
