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
from modelserver.models.environments.environments import Environments, WorkerEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from modelserver.models.environments.environments import PackageRequest

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

    async def packages(
        self, packages: PackageRequest, fallback: Path, tell: Callable[[str, str], None]
    ) -> WorkerEnvironment:
        """Has the model's packages installed; in use until it is released.

        ``fallback`` is a folder to use if the node has no cache. ``tell`` gets the progress, and pip's output
        line by line with its source.

        Raises:
            InvalidModel: the requirements file is missing or cannot be read.
            EnvironmentFailed: pip failed or timed out; its last lines are in the message.
        """

        environments = Environments(sys.executable, fallback, self._hidden, printed=tell)
        provided = await environments.provide(packages, lambda step: tell(step, ""))
        return provided or WorkerEnvironment(sys.executable)

    def variables(self, node: Mapping[str, str], packages: WorkerEnvironment) -> dict[str, str]:
        """The variables that the worker's process starts with."""
        own = {**self.own, **packages.variables}
        return worker_variables(node, self._hidden, own, max(1, self.threads))

    @property
    def _hidden(self) -> re.Pattern[str]:
        return re.compile(f"{_NEVER}|(?:{self.hidden})" if self.hidden else _NEVER)
