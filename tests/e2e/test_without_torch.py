"""A server in an environment without torch: what needs none is served, the rest says what to install."""

import sys
import venv
from pathlib import Path

import pytest
from tests.e2e.serving import Home, Server, archived, serving, wait_until

import modelserver
from modelserver.tools.archiver import ArchiveConfig, build_archive

TORCH = ("torch", "torchvision", "torchgen", "functorch")
PLAIN = """
from ts.metrics.dimension import Dimension

def handle(data, context):
    return data and [bytes(row["body"]) for row in data]
"""


WHERE = """
import sys

import modelserver
from ts.context import Context

def handle(data, context):
    return data and [{"python": sys.executable, "code": modelserver.__file__}] * len(data)
"""


def environment_without(folder, left_out):
    """The Python of an environment that has the packages of the tests' own, but for some."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for place in map(Path, sys.path):
        for entry in place.iterdir() if place.name == "site-packages" else ():
            name = entry.name.partition("-")[0]
            # A .pth file may lead to the packages that are left out.
            if name not in left_out and entry.suffix != ".pth" and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow  # an environment and a server from nothing
def test_torch_is_needed_by_models_only(tmp_path):
    """A handler without torch is served; a built-in one, and one that derives from TorchServe's base handler,
    fail with the command that installs torch for this very Python.
    """
    store = tmp_path / "store"
    archived(store, "plain", PLAIN)
    archived(store, "derived", "from ts.torch_handler.base_handler import BaseHandler as Own\n")
    (tmp_path / "weights.pt").write_bytes(b"")
    weights = str(tmp_path / "weights.pt")
    build_archive(
        ArchiveConfig("pictures", "image_classifier", "1.0", export_path=store, serialized_file=weights)
    )
    home = Home(tmp_path / "home")
    home.python = environment_without(tmp_path / "bare", TORCH)

    with serving(Server(home, store)) as server:
        server.registered("plain.mar")
        assert server.predict("plain", b"as it came").text == "as it came"
        for name in ("derived", "pictures"):
            server.register(f"{name}.mar", synchronous=False)
            wait_until(lambda name=name: "failure" in server.describe(name)["workers"][0], "its worker fails")
            failure = server.describe(name)["workers"][0]["failure"]
            assert "No module named 'torch'" in failure
            assert f"`{home.python} -m pip install torch torchvision`" in failure


@pytest.mark.slow  # starts workers from nothing
def test_workers_run_under_another_python(bare, tmp_path):
    """``python=`` runs them without modelserver installed, with the server's code and TorchServe's names."""
    archived(tmp_path, "where", WHERE)
    home = Home(tmp_path / "home", {"PYTHONPATH": ""}, for_children=True)

    with serving(Server(home, tmp_path, settings={"python": bare})) as server:
        server.registered("where.mar", initial_workers=2)
        assert server.predict("where").json() == {"python": str(bare), "code": modelserver.__file__}


def test_python_that_is_too_old_is_refused(old, tmp_path):
    """The start ends with one line."""
    home = Home(tmp_path / "home")
    done = home.run("--start", "--model-store", tmp_path, "--ts-config", home.write_config({"python": old}))

    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"python={old}: it is Python 3.8, workers need 3.10 or newer"]
