"""What each peer is installed from; each has a virtual environment of its own, away from ours."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A server by others: ``package`` names its version, ``requirements`` are for pip.

    ``bare`` is installed without what it requires: all of it is shared or among the requirements.
    ``programs`` must be on the path besides, ``hint`` says where they come from.
    """

    name: str
    title: str
    package: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hint: str = ""


# Its workers import pkg_resources.
_TORCHSERVE = """
    torchserve==0.12.0 torch-model-archiver==0.12.0 enum-compat matplotlib packaging pillow psutil PyYAML
    requests tqdm setuptools<81
"""
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "torchserve",
            "TorchServe",
            "torchserve",
            tuple(_TORCHSERVE.split()),
            ("captum",),  # would bring a torch of its own
            ("java",),
            "apt-get install openjdk-17-jre-headless",
        ),
        Peer("litserve", "LitServe", "litserve", ("litserve==0.2.19", "python-multipart", "pillow")),
        Peer("rayserve", "Ray Serve", "ray", ("ray[serve]==2.60.0", "pillow")),
    )
}


def python_of(peers: Path, name: str) -> Path:
    """The interpreter of a peer's virtual environment."""
    return peers / name / "bin" / "python"


def version_of(python: Path, package: str) -> str | None:
    """The version of a package in a virtual environment, None where it is not installed."""
    return printed_by(python, f"import importlib.metadata as m; print(m.version({package!r}))")


def printed_by(python: Path, code: str) -> str | None:
    """What an interpreter prints for this code, None where that fails."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def missing(peers: Path | None, peer: Peer) -> str | None:
    """Why a peer cannot start, None if it can."""
    if peers is None:
        return "no folder with peers given (--peers DIR)"
    if not python_of(peers, peer.name).exists():
        return f"not installed (python -m benchmarks peers DIR {peer.name})"
    absent = [program for program in peer.programs if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} is missing ({peer.hint})"
    if version_of(python_of(peers, peer.name), peer.package) is None:
        return f"{peer.package} is not in its virtual environment"
    return None
