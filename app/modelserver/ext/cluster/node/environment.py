"""What a worker on a node starts with: the packages of its model, and its environment variables.

Packages are installed as on the server's machine, into the cache of the node (``environments/``), for the
Python that runs the agent.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from modelserver.engine.pools.variables import worker_variables
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.models.environments.environments import Environments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


# Of Ray and the agent, which no model needs and some of which are secret; and what would open a debugger. How
# the worker connects is for itself (see modelserver.ext.cluster.node.dial).
_NEVER: Final = (
    rf"RAY_.*|(?!{LOCAL_SOCKET}$)MODELSERVER_(INVITATION|TICKET|NODE)(_.*)?|PYTHONBREAKPOINT|SPT_NOENV"
)


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of one worker on this node.

    Args:
        hidden: the pattern of further variables that the worker must not see, "" for none.
        own: variables beside those of the node; they win.
        threads: of numeric libraries, if neither ``own`` nor the node says it.
    """

    hidden: str
    own: Mapping[str, str]
    threads: int

    def environments(self, fallback: Path, tell: Callable[[str, str], None]) -> Environments:
        """What installs packages here.

        ``fallback`` is a folder to use if the node has no cache. ``tell`` gets pip's output line by line with
        its source.
        """
        return Environments(sys.executable, fallback, self._hidden, printed=tell)

    def variables(self, node: Mapping[str, str], packages: Mapping[str, str]) -> dict[str, str]:
        """The variables that the worker's process starts with; ``packages`` are those of its packages."""
        return worker_variables(node, self._hidden, {**self.own, **packages}, max(1, self.threads))

    @property
    def _hidden(self) -> re.Pattern[str]:
        return re.compile(f"{_NEVER}|(?:{self.hidden})" if self.hidden else _NEVER)
