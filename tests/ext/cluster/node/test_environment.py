"""What workers on a node start with: only what is theirs of its variables, and their model's packages."""

import re
import sys

import pytest
from tests.ext.packages.test_environments import played

from modelserver.engine.pools.variables import THREAD_VARIABLES, worker_variables
from modelserver.engine.wire.marks import MARK
from modelserver.ext.cluster.node.agent import NodeEnvironment
from modelserver.ext.packages import environments
from modelserver.ext.packages.environments import EnvironmentFailed


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    """An unpacked archive that needs a package, on a node with a cache of its own."""
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "model"
    made.mkdir()
    (made / "requirements.txt").write_text("--no-index\ntiny==1.0\n")
    return made


def note_in(lines):
    """Notes each step, and each line of pip's with its source."""
    return lambda text, source: lines.append(f"{source}: {text}" if source else text)


async def provide(node, model_dir, fallback, tell):
    """As an agent has a model's packages installed."""
    return await node.environments(environments.__name__, fallback, tell).provide(
        ("m", "1.0"), model_dir, "requirements.txt", venv=False, tell=lambda step: tell(step, "")
    )


def variables_of(environment, node, packages=None):
    """Those of a worker's process on a node, without the mark that each process has."""
    variables = environment.process(node, packages or {}).variables
    assert variables.pop(MARK)
    return variables


def environment(hidden="", own=None, threads=2):
    return NodeEnvironment(hidden, own or {}, threads)


# Variables


def test_what_is_rays_or_the_agents_is_hidden():
    """So are the server's secrets and what would open a debugger; the rest is the node's own.

    The worker itself needs to know whether it may use the server's local socket.
    """
    node = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "RAY_AUTH_TOKEN": "secret",
        "RAY_JOB_ID": "1",
        "MODELSERVER_INVITATION": "secret",
        "MODELSERVER_TICKET_SECRET": "secret",
        "MODELSERVER_NODE_CACHE": "/cache",
        "MODELSERVER_NODE_LOCAL_SOCKET": "0",
        "MODELSERVER_CACHE": "/cache",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "SPT_NOENV": "1",
        "ARRAY_SIZE": "3",
    }
    variables = variables_of(environment(), node)

    assert variables.keys() & node.keys() == {
        "PATH",
        "HOME",
        "MODELSERVER_NODE_LOCAL_SOCKET",
        "MODELSERVER_CACHE",
        "ARRAY_SIZE",
    }


def test_the_operators_pattern_hides_more_and_libraries_get_a_thread():
    """``blacklist_env_vars`` counts for whole names, as on the server. Libraries take 0 for all cores."""
    node = {"AWS_SECRET": "x", "KEY": "x", "KEYBOARD": "us", "RAY_X": "x"}
    variables = variables_of(environment("AWS_.*|KEY"), node)
    assert variables.keys() & node.keys() == {"KEYBOARD"}

    variables = variables_of(environment(threads=0), {})
    assert {variables[name] for name in THREAD_VARIABLES} == {"1"}


@pytest.mark.parametrize(
    ("own", "node", "threads"),
    [
        ({}, {}, {"2"}),
        ({}, dict.fromkeys(THREAD_VARIABLES, "7"), {"7"}),
        (dict.fromkeys(THREAD_VARIABLES, "3"), dict.fromkeys(THREAD_VARIABLES, "7"), {"3"}),
        ({}, dict.fromkeys(THREAD_VARIABLES, ""), {"2"}),
    ],
    ids=["the share", "the node's", "the model's", "an empty one"],
)
def test_threads_are_the_models_then_the_nodes_then_the_share(own, node, threads):
    variables = variables_of(environment(own=own), node)
    assert {variables[name] for name in THREAD_VARIABLES} == threads


def test_gpus_are_numbered_as_the_server_does():
    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    for own, node, order in (
        ({}, {}, "PCI_BUS_ID"),
        ({}, fastest, "FASTEST_FIRST"),
        (fastest, {}, "FASTEST_FIRST"),
    ):
        assert variables_of(environment(own=own), node)["CUDA_DEVICE_ORDER"] == order


def test_server_and_node_make_the_same_variables_of_which_packages_win():
    node = {"A": "node", "B": "node", "C": "node"}
    variables = variables_of(environment(own={"A": "own", "B": "own"}), node, {"A": "packages"})

    assert [variables[name] for name in "ABC"] == ["packages", "own", "node"]

    machine, hidden, own = {"A": "1", "B": "2"}, re.compile("B"), {"TS_DECODE_INPUT_REQUEST": "true"}

    assert variables_of(environment("B", own), machine) == worker_variables(machine, hidden, own, 2)


# Packages


async def test_node_without_a_cache_installs_into_the_fallback(tmp_path, model_dir, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    monkeypatch.setattr(sys, "executable", played(tmp_path, "exit 0"))
    packages = await provide(environment(), model_dir, tmp_path / "own", lambda *_: None)

    assert packages.variables["PYTHONPATH"].startswith(str(tmp_path / "own"))


async def test_failed_installation_is_reported_with_pips_last_lines(tmp_path, model_dir, monkeypatch):
    script = "echo 'No matching distribution found for no-such-package==1.0'\nexit 1"
    monkeypatch.setattr(sys, "executable", played(tmp_path, script))
    lines = []

    with pytest.raises(EnvironmentFailed, match=r"(?s)pip ended with status 1\..*no-such-package==1\.0"):
        await provide(environment(), model_dir, tmp_path / "own", note_in(lines))
    assert "m_1.0-pip: No matching distribution found for no-such-package==1.0" in lines


async def test_pip_sees_none_of_the_secrets(tmp_path, model_dir, monkeypatch):
    """It runs code of packages: what workers must not see, it does not get either."""
    for name in ("RAY_AUTH_TOKEN", "MODELSERVER_INVITATION", "AWS_SECRET"):
        monkeypatch.setenv(name, "not to be seen")
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setattr(sys, "executable", played(tmp_path, "env\nexit 1"))
    lines = []
    with pytest.raises(EnvironmentFailed):
        await provide(environment("AWS_.*"), model_dir, tmp_path / "own", note_in(lines))

    assert "m_1.0-pip: KEPT=1" in lines
    assert [line for line in lines if "not to be seen" in line] == []
