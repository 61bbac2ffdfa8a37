"""The settings for workers on other machines, a row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelserver.models.settings.key import CLUSTER, Kind, setting
from modelserver.models.settings.serving import ServingSettings

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClusterSettings(ServingSettings):
    """Where workers run, and how they reach the server."""

    worker_launcher: Literal["local", "ray", "agents"] = setting(
        "local",
        CLUSTER,
        "Where workers run; local: this machine; ray: a Ray cluster; agents: here, as if on other machines.",
    )
    ray_address: str | None = setting(None, CLUSTER, "The Ray cluster's head, as host:port.")
    ray_python: Path | None = setting(
        None,
        CLUSTER,
        "The Python with the cluster's Ray, and modelserver, on this machine; by default the server's own.",
        kind=Kind.FILE,
    )
    worker_address: str = setting(
        "127.0.0.1:0",
        CLUSTER,
        "Where workers on other machines connect, as host:port; port 0 is any free one.",
    )
    worker_tls: Literal["on", "off"] = setting(
        "on", CLUSTER, "off: such connections are not encrypted, for a private network."
    )
    worker_resources: str | None = setting(
        None,
        CLUSTER,
        "What a worker needs there if its model does not say: `resources` of model-config.yaml as JSON.",
        kind=Kind.JSON,
    )
    snapshot_folder: Path | None = setting(
        None, CLUSTER, "The folder of snapshots; by default `config` in the folder of logs."
    )
    standby: bool = setting(
        False, CLUSTER, "Serve only while no other server with this snapshot_folder does; take over from it."
    )
    placement_timeout: float = setting(
        60.0, CLUSTER, "Seconds that a worker waits for a machine before it is asked for again.", minimum=1
    )
    worker_lost_timeout: float = setting(
        10.0,
        CLUSTER,
        "Seconds of silence after which a machine counts as lost, and ends its workers itself.",
        minimum=1,
    )
