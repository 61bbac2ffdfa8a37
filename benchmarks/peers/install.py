"""Install the peers, each into a virtual environment of its own below a folder.

They share the torch of the interpreter that runs this program. TorchServe needs Java 17 or newer besides.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.options import run
from benchmarks.peers.packages import PEERS, Peer, missing, printed_by, python_of, version_of

SHARED = "shared_torch.pth"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks peers", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the virtual environments lie")
    parser.add_argument(
        "names", nargs="*", metavar="PEER", help=f"which; without any all: {', '.join(PEERS)}"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be installed, and leave")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(PEERS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Install each, and say whether it can start; 1 if one cannot."""
    options = parse(arguments)
    failed = False
    for name in options.names or PEERS:
        peer = PEERS[name]
        print(f"{peer.title}: pip install {' '.join((*peer.requirements, *peer.bare))}", flush=True)
        if options.dry_run:
            continue
        install(options.folder, peer)
        reason = missing(options.folder, peer)
        failed = failed or reason is not None
        version = version_of(python_of(options.folder, name), peer.package)
        print(f"{peer.title} {version}: {reason or 'ready'}", flush=True)
    return 1 if failed else 0


def install(folder: Path, peer: Peer) -> None:
    """Make the environment and run pip in it; what pip complains of goes to standard error."""
    home = (folder / peer.name).resolve()
    venv.create(home, with_pip=True)
    python = python_of(folder.resolve(), peer.name)
    packages = printed_by(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    assert packages is not None
    shared = Path(packages, SHARED)
    # pip must not take what this interpreter has for installed there: what is shared comes after it.
    shared.unlink(missing_ok=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[*pip, *peer.requirements], *([[*pip, "--no-deps", *peer.bare]] if peer.bare else [])]
    for command in commands:
        subprocess.run(command, check=False)
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    shared.write_text(f"{Path(torch.origin).parents[1]}\n", "utf-8")


if __name__ == "__main__":
    run(main)
