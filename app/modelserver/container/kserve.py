"""What KServe puts into a container, made into flags and a configuration (kserve reference 12.1).

KServe's storage initializer leaves a model in ``/mnt/models``. These forms are served:

    config/config.properties, model-store/*.mar    as KServe's TorchServe runtime has it
    model-store/*.mar, or archives beside each other
    an unpacked archive: MAR-INF/MANIFEST.json     what storage initializers make of a .tgz

A configuration is used as it is, but for what is different in a pod: KServe speaks to one port, and there is
no wrapper in front of the server, so the addresses are ours. Models keep the names that the configuration
gives them; without one, a lone archive is called as the InferenceService is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from modelserver.archives.store import SUFFIXES
from modelserver.errors import ConfigError
from modelserver.settings.properties import dump, parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HTTP_PORT: Final = 8080
METRICS_PORT: Final = 8082
MANAGEMENT_PORT: Final = 8085  # where TorchServe's lies under KServe; 8081 is a port for gRPC there

_MANIFESTS = "MAR-INF"
_FORMER_ENVELOPES = {"kfserving": "kserve", "kfservingv2": "kservev2"}
_ANY_MODELS = ("load_models", "model_snapshot")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a model was found; ``load`` is for ``load_models`` unless the configuration names models."""

    store: Path
    load: str
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """What the pod is reached at; without a number for gRPC that of the configuration counts, else 7070."""

    http: int = HTTP_PORT
    grpc: int | None = None


def find_layout(
    folder: Path, name: str | None = None, *, store: Path | None = None, config: Path | None = None
) -> Layout:
    """What lies in the folder that KServe mounted.

    Args:
        name: of the InferenceService; a lone archive that no configuration names is called so.
        store, config: where they are if not in their usual places.

    Raises:
        ConfigError: there is no model.
    """
    config = config or _if_file(folder / "config" / "config.properties")
    store = store or next((path for path in (folder / "model-store",) if path.is_dir()), None)
    if store is None and (folder / _MANIFESTS).is_dir():
        return Layout(folder.parent, f"{name}={folder.name}" if name else folder.name, config)
    store = store or folder
    archives = _archives(store)
    if not archives:
        raise ConfigError(
            f"No model in {folder}: needed are model-store with archives and, if there is one, "
            f"config/config.properties, or archives ({', '.join(SUFFIXES)}), "
            f"or an unpacked archive ({_MANIFESTS})"
        )
    if config is None and name and len(archives) == 1:
        return Layout(store, f"{name}={archives[0]}")
    return Layout(store, ",".join(archives), config)


def configuration(layout: Layout, ports: Ports) -> bytes:
    """The configuration for the server: the model's own, and behind it what counts in a pod.

    Environment variables are read in any case: they are how an InferenceService sets anything.
    Different from TorchServe: management stays on loopback, whatever the file says.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        own = b"" if layout.config is None else layout.config.read_bytes()
    except OSError as error:
        raise ConfigError(f"--ts-config file cannot be read: {layout.config} ({error.strerror})") from None
    given = parse(own)
    here = {
        "enable_envvars_config": "true",
        "inference_address": f"{_scheme(given)}://0.0.0.0:{ports.http}",
        "management_address": f"http://127.0.0.1:{MANAGEMENT_PORT}",
        "metrics_address": f"http://0.0.0.0:{METRICS_PORT}",
        "grpc_inference_address": "0.0.0.0",  # noqa: S104 - a pod is reached by its own address
        "grpc_management_address": "127.0.0.1",
    }
    if ports.grpc is not None:
        here["grpc_inference_port"] = str(ports.grpc)
    if not any(given.get(key, "").strip() for key in _ANY_MODELS):
        here["load_models"] = layout.load
    envelope = given.get("service_envelope", "").strip().lower()
    if envelope in _FORMER_ENVELOPES:
        here["service_envelope"] = _FORMER_ENVELOPES[envelope]
    # Of a key that is repeated the last one counts; the empty line ends a line that a backslash would go on.
    return own + b"\n\n" + dump(here).encode("ascii")


def _scheme(given: Mapping[str, str]) -> str:
    """That of the file's own address: TLS stays TLS."""
    return "https" if given.get("inference_address", "").strip().lower().startswith("https:") else "http"


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


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None
