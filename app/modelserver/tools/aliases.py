"""``modelserver-aliases``: TorchServe's names of commands and modules, for existing scripts.

``install DIR`` writes the executables ``torchserve``, ``torch-model-archiver`` and
``torch-workflow-archiver``. The first starts the server with ``MODELSERVER_STARTED_AS=torchserve`` in its
environment, so that it uses TorchServe's defaults unless ``compat_defaults`` says otherwise.

It also writes ``DIR/modelserver_aliases/model_archiver.py`` and ``ts.py``: with that folder in ``PYTHONPATH``
scripts can ``import model_archiver`` and get :mod:`modelserver.model_archiver`, and ``python -m
ts.llm_launcher`` works. It is a separate folder so that it never hides the real packages just because it is
beside a program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from modelserver.engine.file_locks import replace_file
from modelserver.models.settings.sources import STARTED_AS

MODULES: Final = {
    "torchserve": "modelserver",
    "torch-model-archiver": "modelserver.tools.archiver",
    "torch-workflow-archiver": "modelserver.tools.archiver workflow",
}
"""Each name and the module that it runs, with its first argument."""

FOLDER: Final = "modelserver_aliases"
"""The folder of the modules in the directory; for ``PYTHONPATH``."""

PACKAGES: Final = {
    "model_archiver": "from modelserver.model_archiver.names import offer\n\noffer(__name__)\n",
    "ts": "from modelserver_handlers.compat import PATH\n"
    "from modelserver_handlers.compat.finder import install_finder\n\n"
    '__path__ = [f"{PATH}/ts"]\ninstall_finder()\n',
}
"""The modules in that folder, and their texts."""

_MARK: Final = "# Written by modelserver-aliases."
_MOST_READ: Final = 4096  # bytes; an alias is far smaller


class AliasError(Exception):
    """Why an alias cannot be written; the message is for the user."""


def install(folder: Path, *, force: bool = False) -> list[Path]:
    """Writes the aliases into ``folder``, creating it if needed; all of them or none.

    Raises ``AliasError`` if another file has such a name, unless ``force`` is given, and ``OSError`` if they
    cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise AliasError(f"{folder} is not a directory.")
    paths = _paths(folder)
    strange = [path for path in paths if os.path.lexists(path) and not is_alias(path)]
    if strange and not force:
        names = " and ".join(map(str, strange))
        raise AliasError(
            f"{names}: not written by modelserver-aliases, perhaps the real TorchServe. "
            "Choose another directory, or overwrite with --force."
        )
    if directories := [path for path in strange if path.is_dir() and not path.is_symlink()]:
        raise AliasError(f"{directories[0]} is a directory.")
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.name in MODULES:
            replace_file(path, script(path.name, sys.executable).encode(), mode=0o755)
        else:
            replace_file(path, f"{_MARK}\n{PACKAGES[path.stem]}".encode())
    return paths


def remove(folder: Path) -> list[Path]:
    """Deletes the aliases in ``folder``, and nothing else; returns what was deleted."""
    paths = [path for path in _paths(folder) if is_alias(path)]
    for path in paths:
        path.unlink()
    shutil.rmtree(folder / FOLDER / "__pycache__", ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or missing
        (folder / FOLDER).rmdir()
    return paths


def _paths(folder: Path) -> list[Path]:
    modules = [folder / FOLDER / f"{name}.py" for name in PACKAGES]
    return [*(folder / name for name in MODULES), *modules]


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
        description=f"Lets scripts call modelserver by TorchServe's names: {', '.join(MODULES)}, and, with "
        f"DIR/{FOLDER} in PYTHONPATH, import model_archiver and ts.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("install", help="write the executables")
    adding.add_argument("directory", metavar="DIR", type=Path, help="where to, ideally on the PATH")
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
        _warn_of_others([path for path in done if path.name in MODULES])
    return 0


def _warn_of_others(paths: Sequence[Path]) -> None:
    """Warns of names that PATH resolves to another program, or not at all."""
    for path in paths:
        program = shutil.which(path.name)
        if program is None:
            print(f"{path.parent} is not on the PATH.", file=sys.stderr)
            return
        if not (Path(program).exists() and Path(program).samefile(path)):
            print(f"On this PATH {path.name} is {program}.", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
