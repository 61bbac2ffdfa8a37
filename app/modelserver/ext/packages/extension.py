"""The Python packages that models need besides those of the server."""

from __future__ import annotations

import sys
from pathlib import Path

from modelserver.ext.packages import environments
from modelserver.extension import Host
from modelserver.models.settings.settings import Settings


class Extension:
    """Always on: any model may have ``useVenv`` in its file."""

    async def open(self, host: Host) -> None:
        host.install = environments_of(host.settings, host.workdir).provide

    async def close(self, grace: float) -> None:
        """Nothing is open."""


def environments_of(settings: Settings, workdir: Path) -> environments.Environments:
    """What installs packages on this machine."""
    python, folder = settings.python or sys.executable, workdir / "environments"
    return environments.Environments(python, folder, settings.blacklist_env_vars)
