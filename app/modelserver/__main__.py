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
    if arguments and (module := COMMANDS.get(arguments[0])) is not None:
        status: int = import_module(module).main(arguments[1:])
        return status
    return start_stop.main(arguments, EXTENSIONS)


if __name__ == "__main__":
    sys.exit(main())
