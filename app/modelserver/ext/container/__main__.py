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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.errors import ConfigError
from modelserver.ext.container.kserve import HTTP_PORT, PodPorts, configuration, find_layout
from modelserver.models.settings.sources import BENEATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOUNTED: Final = Path("/mnt/models")
"""Where KServe puts models."""

IMAGES_OWN: Final = Path("/etc/modelserver.properties")
"""The settings of the image, which apply to keys that a mounted configuration does not set."""

WRITTEN: Final = "modelserver-kserve.properties"
"""The configuration for a pod, in the temporary folder."""

_ALWAYS = ("--foreground",)
_WORDS = ("modelserver", "serve", "torchserve")
_COMMANDS = ("build", "check", "llm", "migrate", "record", "replay", "serve", "status", "tune")
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
    return bool(word) and not word.startswith("-") and word not in {*_WORDS, *_COMMANDS}


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
    if words and words[0] in _COMMANDS:
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
    written = _write(configuration(layout, PodPorts(pod.http_port, pod.grpc_port)))
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
