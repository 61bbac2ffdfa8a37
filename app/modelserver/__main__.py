"""The command ``modelserver``, also as ``python -m modelserver``: the server, or a subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from modelserver.ext import EXTENSIONS
from modelserver.run import start_stop
from modelserver.tools import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and (command := COMMANDS.get(arguments[0])) is not None:
        status: int = import_module(command[0]).main(arguments[1:])
        return status
    others = [f"  modelserver {name:8} {about}" for name, (_, about) in COMMANDS.items()]
    return start_stop.main(arguments, EXTENSIONS, "\n".join(["other commands, with --help each:", *others]))


if __name__ == "__main__":
    sys.exit(main())
