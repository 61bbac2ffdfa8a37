"""The command line of ``modelserver serve``: what is served, and how."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from modelserver.errors import BadRequest, ConfigError
from modelserver.ext.files.layout import handler_of
from modelserver.ext.stores.hub_model import ENGINES, TASKS, is_hub_model
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.store import SUFFIXES
from modelserver.models.archives.urls import scheme
from modelserver.models.options.resolve import Registration
from modelserver.tools.commands import check_least

# Of a model on the hub, as it is written there.
_HUB_NAME: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w.-]+)?")
HOST: Final = "127.0.0.1"
_LAST_PORT: Final = 65535 - 2
# The most names of other files in a message.
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``registration`` is what to serve. ``file`` is the script, model file, folder or archive that it comes
    from, if it is a local one.

    ``port`` is that of inference; management and metrics have the two after it, or the settings' ports
    without one. ``input_file``: the body of a request to send as soon as the model is loaded. ``trust``: what
    is served may be a pickle. ``parent`` is the process of a script that serves itself.
    """

    registration: Registration
    file: Path | None
    model_file: Path | None
    input_file: Path | None
    source: str
    port: int | None
    reload: bool
    content_type: str | None
    ts_config: str | None
    trust: bool
    parent: int | None

    @property
    def handler(self) -> str:
        """The built-in handler of a model file, empty for anything else."""
        single = None if self.file is None else SingleFile.parse(str(self.file))
        return "" if single is None else handler_of(single)

    def flags(self) -> dict[str, object]:
        """The settings that it asks for, by name: loopback, nothing else to load, no gRPC, no log files."""
        ports = {} if self.port is None else dict(zip(_ROLES, range(self.port, self.port + 3), strict=True))
        return {
            **{f"{role}_address": f"http://{HOST}:{port}" for role, port in (ports or _USUAL).items()},
            "ts_config": self.ts_config,
            "model_store": str(Path.cwd() if self.file is None else self.file.parent),
            "load_models": "",
            "model_snapshot": "",
            "default_workers_per_model": 1,
            "enable_grpc_api": "false",
            "log_files": "false",
            "frontend_processes": 1,
            **({"trust_pickles": "true"} if self.trust else {}),
        }


_ROLES: Final = ("inference", "management", "metrics")
_USUAL: Final = dict(zip(_ROLES, (8080, 8081, 8082), strict=True))


def read_options(arguments: Sequence[str]) -> ServeOptions:
    """Reads the arguments. Raises ConfigError for a file that is missing, or a value that is not allowed."""
    options = build_parser().parse_args(arguments)
    check_least(options, 1, "batch_size", "workers")
    if options.port is not None and not 1 <= options.port <= _LAST_PORT:
        raise ConfigError(f"--port={options.port}: a number from 1 to {_LAST_PORT} is needed")
    url, file, model_file = locate_source(options.source, options.model_file)
    if query := hub_query(options, of_hub=is_of_hub(url, file)):
        url += ("&" if "?" in url else "?") + query
    try:
        registration = Registration(
            url=url,
            model_name=options.name,
            batch_size=options.batch_size,
            max_batch_delay=options.max_batch_delay,
            min_workers=options.workers,
            max_workers=options.workers,
            route=options.route,
            trusted=True,
        )
    except BadRequest as error:
        raise ConfigError(error.message) from error
    if options.reload and file is None:
        raise ConfigError(f"--reload watches files, and {options.source} is none")
    input_file = _existing(options.input, "--input")
    others = ("source", "port", "reload", "content_type", "ts_config", "trust", "parent")
    values = {name: getattr(options, name) for name in others}
    return ServeOptions(registration, file, model_file, input_file, **values)


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver serve",
        description="Serves one model in the foreground, on this machine only. Ctrl-C stops it.",
        epilog="SOURCE is handler.py, or handler.py:NAME for one of several classes or functions in it; a "
        "model file (.pt2, .pt with TorchScript, .onnx, .joblib, .skops, XGBoost's .json and .ubj); "
        "torchvision://NETWORK; ORG/NAME or hf://ORG/NAME[@REVISION] on the Hugging Face hub, or the folder "
        "of such a model; an archive, or the folder of an unpacked one; or a URL.",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what to serve")
    add(
        "--name",
        help="the model's name in URLs (default: the file's, iris for iris.py, whatever class is in it; NAME "
        "of handler.py:NAME; of an archive, that in its manifest)",
    )
    add("--model-file", metavar="FILE", help="weights for the script, its serializedFile")
    add("--batch-size", metavar="N", type=int, help="the most requests in a batch (default: 1)")
    add("--max-batch-delay", metavar="MS", type=int, help="how long a batch may wait for more requests")
    add("--workers", metavar="N", type=int, help="processes with the model (default: 1)")
    add(
        "--route",
        metavar="PATH",
        help="where it answers as well, such as /api (only /predictions/NAME without)",
    )
    add("--port", metavar="N", type=int, help="of predictions; N+1 is for management, N+2 for metrics")
    add("--reload", action="store_true", help="load the model again when its files change")
    add("--input", metavar="FILE", help="send this once the model is loaded, and print answer and time")
    add("--content-type", metavar="TYPE", help="of --input (default: guessed from its name)")
    add("--ts-config", metavar="FILE", help="a config.properties with further settings")
    add("--task", choices=TASKS, help="of a model of the hub (default: by its configuration)")
    add("--engine", choices=ENGINES, help="that computes a model of the hub (default: vllm if installed)")
    add("--trust", action="store_true", help="run code of the model: pickles, modules that come with it")
    add("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def locate_source(source: str, model_file: str | None = None) -> tuple[str, Path | None, Path | None]:
    """The URL of the registration, the local file and the model file. Raises ConfigError."""
    if _HUB_NAME.fullmatch(source) and SingleFile.parse(source) is None and _is_absent(Path(source)):
        source = f"hf://{source}"
    if "://" in source:
        if model_file is not None:
            raise ConfigError("--model-file is for a script: what a URL names has its own weights")
        return source, None, None
    single = SingleFile.parse(source)
    file = _existing(source if single is None else single.path, "SOURCE")
    assert file is not None  # noqa: S101 - as it is given
    is_script = single is not None and file.suffix == ".py"
    weights = _existing(model_file, "--model-file")
    if weights is not None and not is_script:
        raise ConfigError(f"--model-file is for a script, and {source} is none")
    if single is None or not is_script:
        return str(file), file, None
    name = f":{single.name}" if single.name else ""
    return f"{file}{name}" + (f"?model_file={weights}" if weights else ""), file, weights


def hub_query(options: argparse.Namespace, *, of_hub: bool) -> str:
    """What the flags say about a model of the hub. Raises ConfigError if there are some, and it is none."""
    if not of_hub:
        if options.task or options.engine:
            raise ConfigError(f"--task and --engine are for models of the hub, and {options.source} is none")
        return ""
    chosen = {"task": options.task, "engine": options.engine, "trust_remote_code": options.trust and "true"}
    return urlencode({name: value for name, value in chosen.items() if value})


def is_of_hub(url: str, file: Path | None) -> bool:
    """Whether a URL names a model of the hub, or a file is the folder of one."""
    return scheme(url) == "hf" if file is None else is_hub_model(file)


def _is_absent(path: Path) -> bool:
    """Whether neither it nor its folder exist, and its name is not that of an archive."""
    return not path.parent.exists() and not path.name.endswith(SUFFIXES)


def _existing(path: str | None, option: str) -> Path | None:
    """The absolute path. Raises ConfigError."""
    if path is None:
        return None
    absolute = Path(os.path.abspath(path))
    if not absolute.exists():
        raise ConfigError(f"{option}: {shlex.quote(path)} does not exist{_similar(absolute)}")
    return absolute


def _similar(absent: Path) -> str:
    """The name of a file beside it that may have been meant, or a few of the same kind."""
    try:
        beside = sorted(os.listdir(absent.parent))
    except OSError:
        return ""
    names = get_close_matches(absent.name, beside, 1) or [
        name for name in beside if absent.suffix and Path(name).suffix == absent.suffix
    ]
    if len(names) > _FEW:
        names[_FEW - 1 :] = [f"{len(names) - _FEW + 1} others"]
    if len(names) < 2:
        return "".join(f"; {name} does" for name in names)
    return f"; {', '.join(names[:-1])} and {names[-1]} do"
