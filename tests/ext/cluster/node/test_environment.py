"""What workers on a node start with: only what is theirs of its variables, and their model's packages."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from modelserver.engine.pools.variables import THREAD_VARIABLES, worker_variables
from modelserver.errors import InvalidModel
from modelserver.ext.cluster.node.environment import NodeEnvironment
from modelserver.models.environments.environments import EnvironmentFailed, Wanted, WorkerEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_wheel(folder: Path, name: str, code: str) -> None:
    """A package of one module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    rows = [f"{p},sha256={base64.urlsafe_b64encode(d).rstrip(b'=').decode()}," for p, d in digests.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked archive that brings the wheel it needs, on a node with a cache of its own."""
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "model"
    write_wheel(made / "wheels", "tiny", "ANSWER = 42\n")
    (made / "requirements.txt").write_text("--no-index\n--find-links wheels\ntiny==1.0\n")
    return made


def played(tmp_path: Path, script: str) -> str:
    """A Python whose ``-m pip`` is this shell script."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nif [ "$2" = pip ]; then\n{script}\nelse\nexec {sys.executable} "$@"\nfi\n')
    path.chmod(0o755)
    return str(path)


def told_to(told: list[str]) -> Callable[[str, str], None]:
    """Notes each step, and each line of pip's with its source."""
    return lambda text, source: told.append(f"{source}: {text}" if source else text)


def answer(python: str, variables: dict[str, str]) -> str:
    """What a program reads from the package."""
    code = "import tiny, modelserver, msgspec; print(tiny.ANSWER)"
    ended = subprocess.run([python, "-c", code], env=variables, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def wanted(model_dir: Path, requirements: str | None = "requirements.txt", *, venv: bool = False) -> Wanted:
    return Wanted("m", "1.0", model_dir, requirements, venv)


def environment(hidden: str = "", own: dict[str, str] | None = None, threads: int = 2) -> NodeEnvironment:
    return NodeEnvironment(hidden, own or {}, threads)


# Variables


def test_what_is_rays_or_the_agents_is_hidden() -> None:
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
    variables = environment().variables(node, WorkerEnvironment())

    assert variables.keys() & node.keys() == {
        "PATH",
        "HOME",
        "MODELSERVER_NODE_LOCAL_SOCKET",
        "MODELSERVER_CACHE",
        "ARRAY_SIZE",
    }


def test_the_operators_pattern_hides_more() -> None:
    """``blacklist_env_vars`` counts on nodes as on the server, and only for whole names."""
    node = {"AWS_SECRET": "x", "KEY": "x", "KEYBOARD": "us", "RAY_X": "x"}
    variables = environment("AWS_.*|KEY").variables(node, WorkerEnvironment())

    assert variables.keys() & node.keys() == {"KEYBOARD"}


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
def test_threads(own: dict[str, str], node: dict[str, str], threads: set[str]) -> None:
    """The model's number counts before that of the node, and this before the worker's share of cores."""
    variables = environment(own=own).variables(node, WorkerEnvironment())

    assert {variables[name] for name in THREAD_VARIABLES} == threads


def test_no_share_of_cores_is_one_thread() -> None:
    """Libraries would take 0 for all cores."""
    variables = environment(threads=0).variables({}, WorkerEnvironment())

    assert {variables[name] for name in THREAD_VARIABLES} == {"1"}


def test_gpus_are_numbered_as_the_server_does() -> None:
    """By their places in the machine; CUDA's own order is by speed. The user's choice wins."""
    default = environment().variables({}, WorkerEnvironment())
    chosen = environment().variables({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, WorkerEnvironment())
    own = environment(own={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}).variables({}, WorkerEnvironment())

    assert default["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert chosen["CUDA_DEVICE_ORDER"] == own["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_what_wins() -> None:
    """The packages' variables come before the model's, these before the node's."""
    node = {"A": "node", "B": "node", "C": "node"}
    packages = WorkerEnvironment(variables={"A": "packages"})
    variables = environment(own={"A": "own", "B": "own"}).variables(node, packages)

    assert [variables[name] for name in "ABC"] == ["packages", "own", "node"]


def test_the_server_and_nodes_make_them_alike() -> None:
    """A worker starts with the same variables on either."""
    machine, hidden, own = {"A": "1", "B": "2"}, re.compile("B"), {"TS_DECODE_INPUT_REQUEST": "true"}

    assert environment("B", own).variables(machine, WorkerEnvironment()) == worker_variables(
        machine, hidden, own, 2
    )


# Packages


@pytest.mark.slow
async def test_packages_are_installed_once_on_a_node(tmp_path: Path, model_dir: Path) -> None:
    """Two workers that start at once share them; pip's lines are told, and the module can be imported."""
    told: list[str] = []
    first, second = await asyncio.gather(
        *(environment().packages(wanted(model_dir), tmp_path / "own", told_to(told)) for _ in range(2))
    )

    assert first == second
    assert told.count("Installing the packages of m 1.0") == 1
    assert any("Successfully installed tiny-1.0" in line for line in told)
    assert answer(sys.executable, environment().variables({"PATH": "/bin"}, first)) == "42"
    assert not (tmp_path / "own").exists()


async def test_a_model_without_packages(tmp_path: Path, model_dir: Path) -> None:
    """Its worker is run by the node's Python, and nothing is installed."""
    told: list[str] = []
    packages = await environment().packages(wanted(model_dir, None), tmp_path / "own", told_to(told))

    assert packages == WorkerEnvironment(sys.executable)
    assert told == []


async def test_a_node_without_a_cache(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder for this case is used."""
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    monkeypatch.setattr(sys, "executable", played(tmp_path, "exit 0"))
    packages = await environment().packages(wanted(model_dir), tmp_path / "own", lambda *_: None)

    assert packages.variables["PYTHONPATH"].startswith(str(tmp_path / "own"))


async def test_packages_that_cannot_be_installed(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has pip's last lines, which were told as well."""
    script = "echo 'No matching distribution found for no-such-package==1.0'\nexit 1"
    monkeypatch.setattr(sys, "executable", played(tmp_path, script))
    told: list[str] = []

    with pytest.raises(EnvironmentFailed, match=r"(?s)pip ended with status 1\..*no-such-package==1\.0"):
        await environment().packages(wanted(model_dir), tmp_path / "own", told_to(told))
    assert "m_1.0-pip: No matching distribution found for no-such-package==1.0" in told


async def test_a_missing_requirements_file(tmp_path: Path, model_dir: Path) -> None:
    """It is refused as on the server."""
    with pytest.raises(InvalidModel, match=r"The requirementsFile 'other\.txt' of m is missing"):
        await environment().packages(wanted(model_dir, "other.txt"), tmp_path / "own", lambda *_: None)


async def test_pip_sees_none_of_the_secrets(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs code of packages: what workers must not see, it does not get either."""
    for name in ("RAY_AUTH_TOKEN", "MODELSERVER_INVITATION", "AWS_SECRET"):
        monkeypatch.setenv(name, "not to be seen")
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setattr(sys, "executable", played(tmp_path, "env\nexit 1"))
    told: list[str] = []
    with pytest.raises(EnvironmentFailed):
        await environment("AWS_.*").packages(wanted(model_dir), tmp_path / "own", told_to(told))

    assert "m_1.0-pip: KEPT=1" in told
    assert [line for line in told if "not to be seen" in line] == []


@pytest.mark.slow
async def test_a_virtual_environment_on_a_node(tmp_path: Path, model_dir: Path) -> None:
    """With ``useVenv`` its Python runs the worker, and sees the node's packages too."""
    packages = await environment().packages(wanted(model_dir, venv=True), tmp_path / "own", lambda *_: None)
    assert packages.python is not None

    assert packages.python != sys.executable
    assert answer(packages.python, {}) == "42"
