"""The entry point of the container image: turns its arguments into flags and becomes the server.

    IMAGE [modelserver] [FLAGS]              also modelserver's commands that are no start: IMAGE tune …
    IMAGE serve | torchserve [FLAGS]         as TorchServe's image is started
    IMAGE COMMAND [ARGUMENTS]                becomes another command, such as bash or torch-model-archiver
    IMAGE --model-dir DIR [--model-name NAME] [--http-port N] [--grpc-port N] [FLAGS]
                                             under KServe; also with underscores, as for its own servers

If KServe's webhook has set ``PROTOCOL_VERSION``, as it does for its TorchServe runtime, ``--model-dir``
defaults to ``/mnt/models``: the image can replace KServe's in that runtime.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelserver.errors import ConfigError
from modelserver.models.archives.store import SUFFIXES
from modelserver.models.settings.properties import dump, parse
from modelserver.models.settings.sources import BENEATH
from modelserver.tools import COMMANDS

# From what KServe puts into a container to flags and a configuration (kserve reference 12.1).
#
# KServe's storage initializer stores a model in ``/mnt/models``. These layouts are supported:
#
#     config/config.properties, model-store/*.mar    as for KServe's TorchServe runtime
#     model-store/*.mar, or archives in the folder itself
#     an unpacked archive: MAR-INF/MANIFEST.json     as storage initializers unpack a .tgz
#
# The configuration is used, except for what differs in a pod: KServe connects to one port, and there is no
# wrapper in front of the server, so the addresses are ours. Models keep their names in the configuration;
# without one, a single archive gets the InferenceService's name.

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
    usual_config, usual_store = folder / "config" / "config.properties", folder / "model-store"
    config = config or (usual_config if usual_config.is_file() else None)
    store = store or (usual_store if usual_store.is_dir() else None)
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


def configuration(layout: Layout, http: int = HTTP_PORT, grpc: int | None = None) -> bytes:
    """The configuration for the server: the model's, followed by what differs in a pod, such as its ports.
    Without one for gRPC, that of the configuration is used, or else 7070.

    Environment variables are always read, as an InferenceService sets everything by them. Unlike in
    TorchServe, management stays on loopback, whatever the file says. Raises ConfigError if the file cannot
    be read.
    """
    try:
        own = b"" if layout.config is None else layout.config.read_bytes()
    except OSError as error:
        raise ConfigError(f"--ts-config file cannot be read: {layout.config} ({error.strerror})") from None
    original = parse(own)
    has_tls = original.get("inference_address", "").strip().lower().startswith("https:")
    here = {
        "enable_envvars_config": "true",
        "inference_address": f"{'https' if has_tls else 'http'}://0.0.0.0:{http}",
        "management_address": f"http://127.0.0.1:{MANAGEMENT_PORT}",
        "metrics_address": f"http://0.0.0.0:{METRICS_PORT}",
        "grpc_inference_address": "0.0.0.0",  # noqa: S104 - a pod is reached by its own address
        "grpc_management_address": "127.0.0.1",
    }
    if grpc is not None:
        here["grpc_inference_port"] = str(grpc)
    here |= {key: "false" for key in _PRINTED if key not in original}
    if not any(original.get(key, "").strip() for key in _ANY_MODELS):
        here["load_models"] = layout.load
    # The last of repeated keys takes effect; the empty line ends a line that a backslash would continue.
    return own + b"\n\n" + dump(here).encode("ascii")


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


MOUNTED: Final = Path("/mnt/models")
"""Where KServe puts models."""

IMAGES_OWN: Final = Path("/etc/modelserver.properties")
"""The settings of the image, which apply to keys that a mounted configuration does not set."""

WRITTEN: Final = "modelserver-kserve.properties"
"""The configuration for a pod, in the temporary folder."""

_ALWAYS = ("--foreground",)
_WORDS = ("modelserver", "serve", "torchserve")
_NO_SUCH_COMMAND = 127  # as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Becomes the server or another command, as the same process; if it cannot, prints why and returns the
    exit status.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if is_other(arguments):
            return become(arguments)
        flags, environment = prepare(arguments, os.environ)
        command = [sys.executable, "-m", "modelserver", *flags]
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is meant
    except ConfigError as error:
        print(error, flush=True)
    return 1


def is_other(arguments: Sequence[str]) -> bool:
    """Whether this is a command of its own, and no start of the server."""
    word = arguments[0] if arguments else ""
    return bool(word) and not word.startswith("-") and word not in {*_WORDS, *COMMANDS}


def become(command: Sequence[str]) -> int:
    """Becomes the command; if it cannot, prints why and returns the exit status."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - no shell is meant
    except FileNotFoundError:
        reason = f"{command[0]}: this image has no such command, and modelserver no such word."
    except OSError as error:
        reason = f"{command[0]} cannot be run: {error.strerror}"
    print(reason, flush=True)
    return _NO_SUCH_COMMAND


def prepare(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The flags of ``modelserver``, and its environment; under KServe it writes the configuration of the pod.

    Raises:
        ConfigError: there is no model in KServe's folder, or the configuration cannot be written.
    """
    words = list(arguments[1:] if arguments[:1] and arguments[0] in _WORDS else arguments)
    if words and words[0] in COMMANDS:
        # After `modelserver`, `serve` is the command that serves one script, not TorchServe's word.
        return words, dict(environ)
    # Other flags are passed on to the server.
    pod, rest = _parser().parse_known_args(words)
    folder = pod.model_dir or (MOUNTED if environ.get("PROTOCOL_VERSION") and MOUNTED.is_dir() else None)
    if folder is None:
        beneath = {BENEATH: str(IMAGES_OWN)} if IMAGES_OWN.is_file() else {}
        return [*_ALWAYS, *words], {**beneath, **environ}
    config = environ.get("TS_CONFIG_FILE") or pod.ts_config
    layout = find_layout(
        folder, pod.model_name, store=pod.model_store, config=Path(config) if config else None
    )
    written = _write(configuration(layout, pod.http_port, pod.grpc_port))
    flags = ["--ncs", "--ts-config", str(written), "--model-store", str(layout.store)]
    return [*_ALWAYS, *flags, *rest], {k: v for k, v in environ.items() if k != "TS_CONFIG_FILE"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("modelserver", add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("--model-dir", "--model_dir", type=Path)
    add("--model-name", "--model_name")
    add("--http-port", "--http_port", type=int, default=HTTP_PORT)
    add("--grpc-port", "--grpc_port", type=int)
    # Flags of the server whose values are needed here.
    add("--model-store", type=Path)
    add("--ts-config")
    return parser


def _write(text: bytes) -> Path:
    try:
        path = Path(tempfile.gettempdir()) / WRITTEN
        path.write_bytes(text)
    except OSError as error:
        raise ConfigError(f"{error.filename or WRITTEN} cannot be written: {error.strerror}") from None
    return path


if __name__ == "__main__":
    sys.exit(main())
