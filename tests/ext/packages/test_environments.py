"""Packages of a model's own, installed by a pip that the test plays; by the real one in tests/e2e."""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.waiting import until

from modelserver.errors import InvalidModel
from modelserver.ext.packages.environments import EnvironmentFailed, Environments


@pytest.fixture
def model_dir(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "requirements.txt").write_text("tiny==1.0\n")
    return made


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "environments"
    made.mkdir()
    return made


def needs(model_dir, *, venv=False, requirements="requirements.txt"):
    return {"model": ("m", "1.0"), "model_dir": model_dir, "requirements": requirements, "venv": venv}


def played(tmp_path, script):
    """A Python whose ``-m pip`` is this shell script."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nif [ "$2" = pip ]; then\n{script}\nelse\nexec {sys.executable} "$@"\nfi\n')
    path.chmod(0o755)
    return str(path)


def environments(tmp_path, folder, python=sys.executable, **more):
    return Environments(python, tmp_path / "fallback", folder=folder, **more)


def ask(python, code, **variables):
    ended = subprocess.run(
        [python or sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def words_of(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def read(path):
    return path.read_text().strip() if path.exists() else ""


async def test_an_installation_is_shared(tmp_path, folder, model_dir, caplog):
    """By two that come at once, and by one that comes later."""
    messages = []
    python = played(tmp_path, "echo installed")

    async def provide():
        return await environments(tmp_path, folder, python).provide(**needs(model_dir), tell=messages.append)

    with caplog.at_level(logging.INFO):
        first, second = await asyncio.gather(provide(), provide())
        later = await provide()
    lines = [record for record in caplog.records if record.name == "modelserver.model"]

    assert first == second == later
    assert first.python is None
    assert messages == ["Installing the packages of m 1.0"]
    assert [(line.source, line.getMessage()) for line in lines] == [("m_1.0-pip", "installed")]
    assert "its packages are already installed" in caplog.text


async def test_a_failure_ends_in_pips_own_words(tmp_path, folder, model_dir):
    """The message is TorchServe's, then the last lines; nothing is left of the attempt."""
    python = played(tmp_path, "seq 100; echo 'ERROR: No matching distribution found' >&2; exit 1")
    with pytest.raises(EnvironmentFailed) as error:
        await environments(tmp_path, folder, python).provide(**needs(model_dir))

    assert error.value.type == "ModelException"
    assert error.value.status == 400
    first, *last = error.value.message.split("\n")
    assert first == (
        "Custom pip package installation failed for model m. pip ended with status 1. Its last lines were:"
    )
    assert last == [*(str(number) for number in range(82, 101)), "ERROR: No matching distribution found"]
    assert [name for name in names(folder) if not name.endswith(".lock")] == []


async def test_virtual_environment_is_created(tmp_path, folder, model_dir):
    """Its Python sees the server's packages behind its own; without requirements pip is not called, and it is
    made all the same, as in TorchServe. The model's files have any names.
    """
    for name in ("venv.py", "logging.py"):
        (model_dir / name).write_text("raise SystemExit(3)\n")
    python = played(tmp_path, "exit 7")
    made = await environments(tmp_path, folder, python).provide(
        **needs(model_dir, venv=True, requirements=None)
    )

    assert made.variables == {}
    prefix, paths = ask(made.python, "import sys, msgspec; print(sys.prefix, sys.path, sep='|')").split("|")
    assert Path(prefix).parent.parent == folder
    assert paths.index(prefix) < paths.index(str(Path(msgspec.__file__).parents[1]))


async def test_a_virtual_environment_that_cannot_be_made(tmp_path, folder, model_dir):
    """TorchServe's message, then the reason."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$2" = venv ]; then echo no room; exit 1; fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with pytest.raises(EnvironmentFailed) as error:
        await environments(tmp_path, folder, str(python)).provide(**needs(model_dir, venv=True))

    assert error.value.message.startswith("Virtual environment creation failed for model m. ")
    assert error.value.message.endswith("no room")


async def test_pip_gets_plain_arguments(tmp_path, folder, model_dir):
    """pip is never run through a shell (F67)."""
    python = played(tmp_path, f'echo "$@" > {tmp_path}/arguments')
    await environments(tmp_path, folder, python).provide(**needs(model_dir))
    arguments = (tmp_path / "arguments").read_text().split()

    assert arguments[:5] == ["-m", "pip", "install", "--upgrade", "--target"]
    assert arguments[-2:] == ["-r", str(model_dir / "requirements.txt")]


async def test_pip_gets_the_variables(tmp_path, folder, model_dir, monkeypatch, caplog):
    """PIP_INDEX_URL and the like reach pip, hidden variables do not; pip does not wait for input (F68)."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example/simple")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    python = played(tmp_path, "pwd; env")
    with caplog.at_level(logging.INFO):
        await environments(tmp_path, folder, python, hidden=re.compile("SECRET.*")).provide(
            **needs(model_dir)
        )
    printed = [record.getMessage() for record in caplog.records if record.name == "modelserver.model"]

    assert str(model_dir) in printed
    assert {"PIP_INDEX_URL=https://packages.example/simple", "PIP_NO_INPUT=1"} <= set(printed)
    assert not any("SECRET" in line for line in printed)


async def test_output_without_lines_is_logged(tmp_path, folder, model_dir):
    script = "head -c 3000000 /dev/zero | tr '\\0' x; printf '\\377\\n'; seq 1000; printf end; exit 3"
    with pytest.raises(EnvironmentFailed) as error:
        await environments(tmp_path, folder, played(tmp_path, script)).provide(**needs(model_dir))

    assert error.value.message.endswith("\n998\n999\n1000\nend")
    assert len(error.value.message) < 1000


async def test_time_is_limited(tmp_path, folder, model_dir):
    """An installation that does not end is ended, with all that it started."""
    mark = str(10_000_000 + os.getpid())
    python = played(tmp_path, f"sleep {mark} & wait")
    with pytest.raises(EnvironmentFailed, match=r"It did not finish within 0\.8 s\.$"):
        await environments(tmp_path, folder, python, limit=0.8).provide(**needs(model_dir))

    await until(
        lambda: not any(mark in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    )
    assert [name for name in names(folder) if not name.endswith(".lock")] == []


async def test_a_leftover_is_not_taken_for_an_environment(tmp_path, folder, model_dir):
    script = 'mkdir -p "$6" && touch "$6/new"'
    provider = environments(tmp_path, folder, played(tmp_path, script))
    made = await provider.provide(**needs(model_dir))
    packages = Path(made.variables["PYTHONPATH"].partition(":")[0])
    (packages.parent / "complete").unlink()
    (packages / "old").touch()

    assert await provider.provide(**needs(model_dir)) == made
    assert names(packages) == ["new"]


async def test_path_and_folder_are_the_servers_without_others(tmp_path, folder, model_dir, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    made = await environments(tmp_path, folder, played(tmp_path, "exit 0")).provide(**needs(model_dir))
    assert made.variables["PYTHONPATH"].split(":")[1:] == ["/a", "/b"]

    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    made = await environments(tmp_path, None, played(tmp_path, "exit 0")).provide(**needs(model_dir))
    assert made.variables["PYTHONPATH"].startswith(str(tmp_path / "fallback"))


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true"])
async def test_missing_python_is_named(tmp_path, folder, model_dir, python):
    with pytest.raises(EnvironmentFailed, match=f"The Python {python} cannot be run: "):
        await environments(tmp_path, folder, python).provide(**needs(model_dir))


async def test_a_cancelled_registration_leaves_nothing(tmp_path, folder, model_dir):
    """Whoever gives up leaves no pip behind, and no folder that looks complete."""
    python = played(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 77")
    asking = asyncio.ensure_future(environments(tmp_path, folder, python).provide(**needs(model_dir)))
    await until(lambda: read(tmp_path / "pid"))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert not psutil.pid_exists(int(read(tmp_path / "pid")))
    assert [name for name in names(folder) if not name.endswith(".lock")] == []


async def test_unused_environments_give_way(tmp_path, folder, model_dir, caplog):
    provider = environments(tmp_path, folder, played(tmp_path, 'mkdir "$6" && echo > "$6/x"'), keep=0)
    made = []
    with caplog.at_level(logging.INFO):
        for number in range(3):
            (model_dir / "requirements.txt").write_text(f"# {number}\n")
            result = await provider.provide(**needs(model_dir))
            made.append(result)
            if number == 0:
                result.release()

    places = [Path(each.variables["PYTHONPATH"].partition(":")[0]).parent for each in made]
    assert [place.exists() for place in places] == [False, True, True]
    assert f"Removed the unused environment {places[0]}" in caplog.text
    (model_dir / "requirements.txt").write_text("# 0\n")
    assert await provider.provide(**needs(model_dir)) == made[0]
    for each in made:
        each.release()


@pytest.mark.parametrize(("content", "reason"), [(None, "is missing"), (b"\xff\xfe\xff", "cannot be read")])
async def test_missing_requirements_file_is_refused(tmp_path, folder, model_dir, content, reason):
    (model_dir / "requirements.txt").unlink()
    if content is not None:
        (model_dir / "requirements.txt").write_bytes(content)
    with pytest.raises(InvalidModel, match=rf"^The requirementsFile 'requirements\.txt' of m {reason}"):
        await environments(tmp_path, folder).provide(**needs(model_dir))
