"""What installs the packages of models: an extension has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from modelserver.models.environments.shared_cache import Use


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """What workers are started with: ``python``, None for the default one, and additional ``variables``.

    It is in ``use`` as long as workers may be started with it.
    """

    python: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    use: Use | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """No more workers are started with it: it may be removed."""
        if self.use is not None:
            self.use.end()


# Installs packages, and returns the model's environment, which is in use until it is released. The arguments
# are the model's name and version, its folder, its requirements file there, or None, ``venv``: they go into
# a virtual environment; ``tell`` gets the progress. Raises InvalidModel, and BadRequest if pip fails.
Install: TypeAlias = Callable[..., Awaitable[WorkerEnvironment]]
