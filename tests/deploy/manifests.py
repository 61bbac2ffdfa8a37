"""The manifests of ``deploy/``, read, and what they may name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from modelserver.telemetry.metrics import ServerMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KSERVE = ROOT / "deploy" / "kserve"
RAY = ROOT / "deploy" / "ray"


def resources(path: Path) -> list[dict[str, Any]]:
    """The resources of a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def in_folder(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each resource of a folder with ``<file>: <kind> <name>``; what is no resource is passed over."""
    for path in sorted(folder.glob("*.yaml")):
        for resource in resources(path):
            if "kind" in resource:
                name = resource.get("metadata", {}).get("name", "")
                yield f"{path.name}: {resource['kind']} {name}", resource


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The one container of a pod's specification, or of a runtime's."""
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def variables(holder: dict[str, Any]) -> dict[str, str]:
    """A container's environment."""
    return {entry["name"]: entry["value"] for entry in holder.get("env", [])}


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """All keys with their values, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def gauges() -> set[str]:
    """The gauges of its own that a server with a model shows."""
    metrics = ServerMetrics(hostname="h")
    model = metrics.model("m", "1.0")
    model.set_queue(1, 1)
    model.set_in_flight(1)
    model.set_workers({"ready": 1})
    return set(re.findall(r"(?m)^# TYPE (modelserver_\w+) gauge$", metrics.render().decode()))
