"""The Python packages that models need besides those of the server."""

from __future__ import annotations

import sys
from pathlib import Path

from modelserver.ext.packages import environments
from modelserver.extension import Host
from modelserver.models.settings.settings import Settings


async def extend(host: Host) -> None:
    """Always on: any model may have ``useVenv`` in its file."""
    host.registry.builder.install = environments_of(host.settings, host.workdir).provide


def environments_of(settings: Settings, workdir: Path) -> environments.Environments:
    """What installs packages on this machine."""
    python, folder = settings.python or sys.executable, workdir / "environments"
    return environments.Environments(python, folder, settings.blacklist_env_vars)
