"""Restores the last snapshot, or the state in the settings, and writes snapshots while the server runs."""

from __future__ import annotations

from modelserver.ext.snapshots.document import check_routes, parse_snapshot
from modelserver.ext.snapshots.files import SnapshotFolder
from modelserver.ext.snapshots.keeper import StateKeeper
from modelserver.ext.snapshots.restoring import Restoring, check_archives
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """With ``--no-config-snapshots`` it only restores the state in the settings, if there is one."""
    settings, registry = host.settings, host.registry
    if host.snapshots is None and settings.model_snapshot is None:
        return
    configured = parse_snapshot(settings.model_snapshot or "{}")
    if settings.as_torchserve:
        check_archives(configured.models, settings.local_store)
    check_routes(configured, registry.router.check)
    registry.workflows.update(configured.workflows)
    folder = None if host.snapshots is None else SnapshotFolder(host.snapshots, host.properties)
    host.first = Restoring(host, configured, folder).load
    if folder is not None:
        keeper = StateKeeper(registry, folder)
        host.keeps.append((keeper.start, keeper.end))
