"""How a Ray cluster is joined, or refused in one line; played, as real ones are in test_ray_cluster.py."""

import json
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

from modelserver.ext.cluster import ray_joining
from modelserver.ext.cluster.ray_joining import Unusable, explained, is_loopback, join, one_line


class AuthenticationError(Exception):
    """Named as Ray's."""


class PlayedRay:
    """The modules of Ray that joining uses."""

    def __init__(self, patch):
        self.joined: list[str] = []
        self.addresses = ["127.0.0.1"]
        self.about: dict[str, str] = {}
        self.has_token: bool | Exception = True
        self.own_nodes = {"0a"}
        self.module = ModuleType("ray")
        self.services = ModuleType("ray._private.services")
        self.module.__version__ = "2.60.0"
        self.module.init = lambda address, **_options: self.joined.append(address)
        loader = SimpleNamespace(has_token=self._look_for_token)
        self.module._raylet = SimpleNamespace(
            AuthenticationTokenLoader=SimpleNamespace(instance=lambda: loader), GcsClient=self._client
        )
        self.services.find_node_ids = lambda: self.own_nodes
        private = ModuleType("ray._private")
        private.services = self.services
        for module in (self.module, private, self.services):
            patch.setitem(sys.modules, module.__name__, module)
        patch.delenv("RAY_AUTH_MODE", raising=False)

    def _look_for_token(self):
        if isinstance(self.has_token, Exception):
            raise self.has_token
        return self.has_token

    def _client(self, address):
        assert address
        nodes = [SimpleNamespace(state=0, node_manager_address=host) for host in self.addresses]
        dead = SimpleNamespace(state=1, node_manager_address="10.9.9.9")
        return SimpleNamespace(
            get_all_node_info=lambda timeout: dict(enumerate([*nodes, dead])),
            internal_kv_get=lambda key, namespace, timeout: json.dumps(self.about).encode(),
        )


@pytest.fixture
def ray(monkeypatch):
    """A cluster on loopback without tokens."""
    return PlayedRay(monkeypatch)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("no-such-host.invalid", False),
    ],
)
def test_loopback_is_recognised(host, loopback):
    """The check resolves the name."""
    assert is_loopback(host) is loopback


def test_a_cluster_on_loopback_is_joined_there(ray):
    assert join("127.0.0.1:6379") is ray.module

    assert ray.joined == ["127.0.0.1:6379"]
    assert ray.services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
    assert ray.services.get_node_ip_address() == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "nodes"),
    [("127.0.0.1:6379", ["127.0.0.1", "10.0.0.7"]), ("10.0.0.7:6379", ["10.0.0.7"])],
    ids=["a node is elsewhere", "its address is no loopback"],
)
def test_an_open_cluster_elsewhere_is_refused(ray, monkeypatch, address, nodes):
    ray.addresses = nodes
    requests = []
    with pytest.raises(
        Unusable, match=r"not on loopback \(10\.0\.0\.7\), and RAY_AUTH_MODE=token is not set"
    ):
        join(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(ray_joining, "demands_token", lambda where: bool(requests.append(where)))
    with pytest.raises(Unusable, match=r"not on loopback \(10\.0\.0\.7\), and takes anyone without a token"):
        join(address)
    assert requests == [address]
    assert ray.joined == []

    monkeypatch.setattr(ray_joining, "demands_token", lambda _where: True)
    join(address)
    assert ray.joined == [address]
    assert not hasattr(ray.services, "resolve_ip_for_localhost")


@pytest.mark.parametrize(
    ("result", "reason"),
    [(False, "there is none"), (AuthenticationError("No file x. Ensure that"), "No file x")],
)
def test_token_mode_without_a_token_is_refused(ray, monkeypatch, result, reason):
    """Ray itself would end the process."""
    monkeypatch.setenv("RAY_AUTH_MODE", "TOKEN")
    ray.has_token = result
    with pytest.raises(Unusable, match=f"RAY_AUTH_MODE=token is set, but no token is found in .*: {reason}$"):
        join("127.0.0.1:6379")


def test_what_refuses_to_be_joined_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unusable, match=r"has no Ray: .*; pip install 'modelserver\[ray\]'"):
        join("127.0.0.1:6379")

    words = explained(AuthenticationError("RPC error.\nEnsure that"), "10.0.0.1:6379")
    assert "demands another token: the server needs RAY_AUTH_MODE=token and the cluster's token in" in words


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("own_nodes", set(), r"ray start --address=127\.0\.0\.1:6379 --num-cpus=0"),
        ("addresses", [], "has no nodes"),
        # Tokens came with 2.52.
        ("module.__version__", "2.51.2", r"has Ray 2\.51\.2; Ray 2\.52 or later is needed"),
    ],
)
def test_cluster_that_cannot_be_joined_is_refused(ray, monkeypatch, attribute, value, reason):
    *path, name = attribute.split(".")
    monkeypatch.setattr(getattr(ray, path[0]) if path else ray, name, value)
    with pytest.raises(Unusable, match=reason):
        join("127.0.0.1:6379")


@pytest.mark.parametrize("error", [SystemExit(15), ConnectionError("Failed to connect\n\nhint")])
def test_what_ray_raises_is_one_line(ray, monkeypatch, error):
    monkeypatch.setattr(ray.module, "init", Mock(side_effect=error))
    with pytest.raises(Unusable, match="cannot be joined: ") as refused:
        join("127.0.0.1:6379")

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ray_version", "python_version", "level", "refused"),
    [
        ("2.60.0", "3.12.1", "", False),
        ("2.60.1", "3.12.1", "", True),
        ("2.60.0", "3.12.9", "", True),
        ("2.60.0", "3.12.9", "minor", False),
        ("2.60.0", "3.11.1", "minor", True),
    ],
)
def test_versions_are_compared_as_ray_does(ray, monkeypatch, ray_version, python_version, level, refused):
    """Ray's must be equal, Python's to the patch or as Ray's setting says; a refusal has both sides."""
    monkeypatch.setenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", level)
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    ray.about = {"ray_version": ray_version, "python_version": python_version}
    other, ours = f"runs Ray {ray_version} with Python {python_version}", "has Ray 2.60.0 with Python 3.12.1"
    if not refused:
        join("127.0.0.1:6379")
        return
    with pytest.raises(Unusable, match=f"{other}, but ray_python .* {ours}"):
        join("127.0.0.1:6379")

    assert ray.joined == []


_NODE_DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: A
The actor is dead because its node has died. Node Id: 12"""
_NOT_CREATED = """The actor died because of an error raised in its creation task, \x1b[36mray::A()\x1b[39m
  File "x.py", line 1
ModuleNotFoundError: No module named 'modelserver'"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (_NODE_DIED, "is dead because its node has died. Node Id: 12"),
        (_NOT_CREATED, "ModuleNotFoundError: No module named 'modelserver'"),
        ("plain  and\nsimple", "plain and simple"),
        ("", "ValueError"),
    ],
)
def test_errors_of_actors_are_one_line(text, line):
    assert one_line(ValueError(text)) == line
    assert len(one_line(ValueError("x" * 9999))) == 300
