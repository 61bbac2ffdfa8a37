"""``modelserver-aliases``: TorchServe's command names for those who have them in scripts.

``install DIR`` writes the executables ``torchserve`` and ``torch-model-archiver``. The first starts the
server with ``MODELSERVER_STARTED_AS=torchserve`` in its environment, so that it knows the name it was called
by; no default depends on that yet. There is no ``torch-workflow-archiver``: workflows cannot be registered
(reference 19).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Sequence

STARTED_AS: Final = "MODELSERVER_STARTED_AS"
"""The environment variable that holds the name which the server was started by."""

MODULES: Final = {"torchserve": "modelserver", "torch-model-archiver": "modelserver.archiver"}
"""Each name and the module that it runs."""

_MARK: Final = "# Written by modelserver-aliases."
_MOST_READ: Final = 4096  # bytes; an alias is far smaller


class AliasError(Exception):
    """What keeps an alias from being written; the message is for the user."""


def install(folder: Path, *, force: bool = False) -> list[Path]:
    """Writes the aliases into ``folder``, which is made if it is not there; all of them or none.

    Raises ``AliasError`` if a file of such a name is there that is not an alias, unless ``force`` is given,
    and ``OSError`` if they cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise AliasError(f"{folder} is not a directory.")
    paths = [folder / name for name in MODULES]
    strange = [path for path in paths if os.path.lexists(path) and not is_alias(path)]
    if strange and not force:
        found = " and ".join(map(str, strange))
        raise AliasError(
            f"{found}: not written by modelserver-aliases, perhaps the real TorchServe. "
            "Choose another directory, or overwrite with --force."
        )
    if directories := [path for path in strange if path.is_dir() and not path.is_symlink()]:
        raise AliasError(f"{directories[0]} is a directory.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        _write(path, script(path.name, sys.executable))
    return paths


def remove(folder: Path) -> list[Path]:
    """Deletes the aliases of ``folder``, and nothing that is not one; returns what was deleted."""
    paths = [path for name in MODULES if is_alias(path := folder / name)]
    for path in paths:
        path.unlink()
    return paths


def is_alias(path: Path) -> bool:
    """Whether this is a file that ``install`` wrote."""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return _MARK.encode() in file.read(_MOST_READ)
    except OSError:
        return False


def script(name: str, python: str) -> str:
    """The text of an alias: a shell script that becomes the command of this interpreter."""
    command = f"exec {shlex.quote(python)} -m {MODULES[name]}"
    return f'#!/bin/sh\n{_MARK}\n{STARTED_AS}={name} {command} "$@"\n'


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="modelserver-aliases",
        description=f"Lets scripts call modelserver by TorchServe's names: {', '.join(MODULES)}.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("install", help="write the executables")
    adding.add_argument("directory", metavar="DIR", type=Path, help="where to; on the PATH, best of all")
    adding.add_argument("--force", action="store_true", help="overwrite what is not an alias")
    removing = commands.add_parser("remove", help="delete them")
    removing.add_argument("directory", metavar="DIR", type=Path, help="where they are")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: 0, or 1 with a message on standard error (2 for a wrong command line)."""
    options = make_parser().parse_args(argv)
    folder: Path = options.directory
    try:
        done = remove(folder) if options.command == "remove" else install(folder, force=options.force)
    except (AliasError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in done:
        print(path)
    if options.command == "install":
        _warn_of_others(done)
    return 0


def _warn_of_others(paths: Sequence[Path]) -> None:
    """Says which name leads elsewhere on this PATH, or nowhere."""
    for path in paths:
        found = shutil.which(path.name)
        if found is None:
            print(f"{path.parent} is not on the PATH.", file=sys.stderr)
            return
        if not (Path(found).exists() and Path(found).samefile(path)):
            print(f"On this PATH {path.name} is {found}.", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{uuid4().hex}.part")
    try:
        partial.write_text(text, "utf-8")
        partial.chmod(0o755)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
