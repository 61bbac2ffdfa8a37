"""The manifests of ``deploy/``, read, and what they may name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.models.settings.load import LoadedSettings, load_settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KSERVE = ROOT / "deploy" / "kserve"
RAY = ROOT / "deploy" / "ray"


def resources(path: Path) -> list[dict[str, Any]]:
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
    (result,) = pod["containers"]
    return result


def variables(holder: dict[str, Any]) -> dict[str, str]:
    """A container's environment."""
    return {entry["name"]: entry["value"] for entry in holder.get("env", [])}


def not_restricted(pod: dict[str, Any]) -> list[str]:
    """What the Pod Security Standard "restricted" would refuse of a pod, or of a runtime's part of one."""
    around = pod.get("securityContext", {})
    wrong = []
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        security = {**around, **container["securityContext"]}
        settings = (
            security.get("seccompProfile"),
            security.get("runAsNonRoot"),
            security.get("privileged", False),
        )
        if settings != ({"type": "RuntimeDefault"}, True, False):
            wrong.append(f"{container['name']}: seccompProfile, runAsNonRoot, privileged are {settings}")
        if security["allowPrivilegeEscalation"] or security["capabilities"] != {"drop": ["ALL"]}:
            wrong.append(f"{container['name']} can gain rights")
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    return wrong + [v["name"] for v in pod.get("volumes", []) if not allowed & v.keys()]


def unbounded_disk(pod: dict[str, Any]) -> list[str]:
    """What of a pod may fill its node's disk: volumes without a limit, containers with less than these."""
    empty = {v["name"]: v["emptyDir"] for v in pod.get("volumes", []) if "emptyDir" in v}
    wrong = [f"{name} has no sizeLimit" for name, volume in empty.items() if "sizeLimit" not in volume]
    containers = [*pod["containers"], *pod.get("initContainers", [])]
    wrong += [
        f"{result['name']} has no {bound} of the disk"
        for result in containers
        for bound in ("requests", "limits")
        if "ephemeral-storage" not in result["resources"][bound]
    ]
    if not wrong:
        volumes = sum(gibibytes(v["sizeLimit"]) for v in empty.values() if v.get("medium") != "Memory")
        limit = sum(gibibytes(result["resources"]["limits"]["ephemeral-storage"]) for result in containers)
        wrong += [f"{volumes} GiB of volumes, a limit of {limit}"] if limit <= volumes else []
    return wrong


def gibibytes(quantity: str) -> int:
    """A quantity like ``8Gi``."""
    return int(quantity.removesuffix("Gi"))


def settings_of(folder: Path, text: str) -> LoadedSettings:
    """The settings of a file; its directories are made below ``folder``."""
    for name in ("model-store", "tokens"):
        (folder / name).mkdir(exist_ok=True)
    text = text.replace("/home/model-server", str(folder)).replace("/etc/modelserver", str(folder))
    (folder / "config.properties").write_text(text, encoding="utf-8")
    return load_settings({}, {}, folder)


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
    model.workers.set_states({"ready": 1})
    return set(re.findall(r"(?m)^# TYPE (modelserver_\w+) gauge$", b"".join(metrics.pieces()).decode()))
