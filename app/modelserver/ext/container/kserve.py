"""From what KServe puts into a container to flags and a configuration (kserve reference 12.1).

KServe's storage initializer stores a model in ``/mnt/models``. These layouts are supported:

    config/config.properties, model-store/*.mar    as for KServe's TorchServe runtime
    model-store/*.mar, or archives in the folder itself
    an unpacked archive: MAR-INF/MANIFEST.json     as storage initializers unpack a .tgz

The configuration is used, except for what differs in a pod: KServe connects to one port, and there is no
wrapper in front of the server, so the addresses are ours. Models keep their names in the configuration;
without one, a single archive gets the InferenceService's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from modelserver.errors import ConfigError
from modelserver.models.archives.store import SUFFIXES
from modelserver.models.settings.properties import dump, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HTTP_PORT: Final = 8080
METRICS_PORT: Final = 8082
MANAGEMENT_PORT: Final = 8085  # as TorchServe's under KServe, where 8081 is a port for gRPC

_MANIFESTS = "MAR-INF"
_PRINTED = ("log_files", "log_probes")  # off, unless the configuration says otherwise
_ANY_MODELS = ("load_models", "model_snapshot")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a model was found; ``load`` is the ``load_models`` unless the configuration names models."""

    store: Path
    load: str
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class PodPorts:
    """The ports of the pod; without one for gRPC, that of the configuration is used, or else 7070."""

    http: int = HTTP_PORT
    grpc: int | None = None


def find_layout(
    folder: Path, name: str | None = None, *, store: Path | None = None, config: Path | None = None
) -> Layout:
    """The layout of the folder that KServe mounted.

    Args:
        name: of the InferenceService, given to a single archive without a configuration.
        store, config: where they are if not in their usual places.

    Raises:
        ConfigError: there is no model.
    """
    config = config or next(
        (path for path in (folder / "config" / "config.properties",) if path.is_file()), None
    )
    store = store or next((path for path in (folder / "model-store",) if path.is_dir()), None)
    if store is None and (folder / _MANIFESTS).is_dir():
        return Layout(folder.parent, f"{name}={folder.name}" if name else folder.name, config)
    store = store or folder
    archives = _archives(store)
    if not archives:
        raise ConfigError(
            f"No model in {folder}: it needs a model-store with archives (and optionally "
            f"config/config.properties), or archives ({', '.join(SUFFIXES)}), "
            f"or an unpacked archive ({_MANIFESTS})"
        )
    if config is None and name and len(archives) == 1:
        return Layout(store, f"{name}={archives[0]}")
    return Layout(store, ",".join(archives), config)


def configuration(layout: Layout, ports: PodPorts) -> bytes:
    """The configuration for the server: the model's, followed by what differs in a pod.

    Environment variables are always read, as an InferenceService sets everything by them. Unlike in
    TorchServe, management stays on loopback, whatever the file says. Raises ConfigError if the file cannot
    be read.
    """
    try:
        own = b"" if layout.config is None else layout.config.read_bytes()
    except OSError as error:
        raise ConfigError(f"--ts-config file cannot be read: {layout.config} ({error.strerror})") from None
    original = parse(own)
    here = {
        "enable_envvars_config": "true",
        "inference_address": f"{_scheme(original)}://0.0.0.0:{ports.http}",
        "management_address": f"http://127.0.0.1:{MANAGEMENT_PORT}",
        "metrics_address": f"http://0.0.0.0:{METRICS_PORT}",
        "grpc_inference_address": "0.0.0.0",  # noqa: S104 - a pod is reached by its own address
        "grpc_management_address": "127.0.0.1",
    }
    if ports.grpc is not None:
        here["grpc_inference_port"] = str(ports.grpc)
    here |= {key: "false" for key in _PRINTED if key not in original}
    if not any(original.get(key, "").strip() for key in _ANY_MODELS):
        here["load_models"] = layout.load
    # The last of repeated keys takes effect; the empty line ends a line that a backslash would continue.
    return own + b"\n\n" + dump(here).encode("ascii")


def _scheme(original: Mapping[str, str]) -> str:
    """The scheme of the file's address: TLS stays TLS."""
    return "https" if original.get("inference_address", "").strip().lower().startswith("https:") else "http"


def _archives(store: Path) -> list[str]:
    try:
        entries = sorted(store.iterdir())
    except OSError as error:
        raise ConfigError(f"No model: {store} cannot be read ({error.strerror})") from None
    return [
        entry.name
        for entry in entries
        if (entry.name.endswith(SUFFIXES) and entry.is_file()) or (entry / _MANIFESTS).is_dir()
    ]
