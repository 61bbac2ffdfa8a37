"""The command ``modelserver build``."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich import filesize

from modelserver.errors import ConfigError
from modelserver.ext.stores.hub_model import ENGINES, TASKS, is_hub_model
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.tools.build.context import BASE, ImageContext, ImageOptions, Source, write_context
from modelserver.tools.commands import check_least, counted, exit_status
from modelserver.tools.serve.options import hub_query, locate_source

_ENGINES: Final = ("podman", "docker")
# Podman leaves the health check out of images of its own format.
_BUILD: Final = {"podman": "podman build --format docker", "docker": "docker build"}


def main(arguments: Sequence[str]) -> int:
    """Writes the context, and builds it if that is wished; returns the exit status."""
    options = build_parser().parse_args(arguments)
    return exit_status(lambda: _build(options), {ConfigError: 1, OSError: 1})


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver build",
        description="Writes a folder from which docker or podman builds an image that serves one model: "
        "Dockerfile, the model, settings, this modelserver, and the packages that the model needs in the "
        "versions that are installed here.",
        epilog="SOURCE is what `modelserver serve` serves, if it is on this machine: handler.py or "
        "handler.py:NAME, a model file, an archive or the folder of one, or the folder of a model of the "
        "Hugging Face hub.",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what the image serves")
    add("--output", metavar="FOLDER", type=Path, help="where to write (default: NAME-container)")
    add("--name", help="the model's name in URLs (default: as of `modelserver serve`)")
    add("--model-file", metavar="FILE", help="weights for the script, its serializedFile")
    add("--batch-size", metavar="N", type=int, help="the most requests in a batch (default: 1)")
    add("--max-batch-delay", metavar="MS", type=int, help="how long a batch may wait for more requests")
    add(
        "--workers",
        metavar="N",
        type=int,
        help="processes with the model (default: one for each core or GPU)",
    )
    add(
        "--requirements", metavar="FILE", type=Path, help="packages that the sources do not import themselves"
    )
    add("--ts-config", metavar="FILE", type=Path, help="a config.properties with further settings")
    add("--task", choices=TASKS, help="of a model of the hub (default: by its configuration)")
    add("--engine", choices=ENGINES, help="that computes a model of the hub (default: vllm if installed)")
    add("--trust", action="store_true", help="run code of the model: pickles, modules that come with it")
    add(
        "--base", metavar="IMAGE", default=BASE, help="a Debian image with this Python (default: %(default)s)"
    )
    add("--tag", help="the image's name (default: the model's)")
    engine = parser.add_mutually_exclusive_group()
    for name in _ENGINES:
        engine.add_argument(
            f"--{name}", dest="engine_program", action="store_const", const=name, help=f"build with {name}"
        )
    return parser


def _build(options: argparse.Namespace) -> int:
    check_least(options, 1, "batch_size", "max_batch_delay", "workers")
    engine: str | None = options.engine_program
    if engine is not None and shutil.which(engine) is None:
        raise ConfigError(f"--{engine}: there is no program {engine} here")
    source, extras = find_source(options)
    config = _existing(options.ts_config, "--ts-config")
    image = ImageOptions(
        name=options.name,
        base=options.base,
        requirements=_existing(options.requirements, "--requirements"),
        extras=extras,
        properties=config.read_bytes() if config else b"",
        defaults=ModelDefaults(
            min_workers=options.workers,
            max_workers=options.workers,
            batch_size=options.batch_size,
            max_batch_delay=options.max_batch_delay,
        ),
    )
    target = options.output or Path(f"{options.name or _stem(source)}-container")
    context = write_context(Path(target).absolute(), source, image)
    tag = options.tag or re.sub(r"[^a-z0-9]+", "-", context.model.name.lower()).strip("-")
    print(describe(context, target))
    program = engine or next((name for name in reversed(_ENGINES) if shutil.which(name)), "docker")
    build = f"{_BUILD[program]} -t {shlex.quote(tag)} {shlex.quote(str(target))}"
    if engine is not None:
        print(f"\n{build}", flush=True)
        status = subprocess.run(shlex.split(build), check=False).returncode  # noqa: S603 - as printed
        if status:
            return status
    print(_next_steps(None if engine else build, program, tag, context.model.name))
    return 0


def find_source(options: argparse.Namespace) -> tuple[Source, tuple[str, ...]]:
    """What is served, and the requirements of its kind. Raises ConfigError."""
    url, file, model_file = locate_source(options.source, options.model_file)
    if file is None:
        raise ConfigError(
            f"{options.source} is not on this machine: download it first, a model of the hub with "
            "`hf download ORG/NAME --local-dir FOLDER`, and build from the file or folder"
        )
    of_hub = is_hub_model(file)
    query = hub_query(options, of_hub=of_hub)
    if of_hub:
        return Source(options.source, file, query=f"?{query}" if query else ""), _hub_extras(options)
    if file.is_dir() and not (file / MANIFEST_PATH).is_file():
        scripts = sorted(path.name for path in file.glob("*.py"))
        script = f"; name its script, as in {file.name}/{scripts[0]}" if scripts else ""
        raise ConfigError(
            f"{options.source} has neither {MANIFEST_PATH} nor a config.json of the hub{script}"
        )
    single = SingleFile.parse(url)
    if single is not None:
        single = SingleFile(str(file), single.name, str(model_file or ""), trusts_pickles=options.trust)
    return Source(options.source, file, single), ()


def _hub_extras(options: argparse.Namespace) -> tuple[str, ...]:
    """The requirements of a model of the hub; of vLLM too where it computes the model."""
    extras: tuple[str, ...] = ("modelserver[transformers]", "transformers")
    if options.engine == "vllm" or (options.engine != "transformers" and find_spec("vllm") is not None):
        extras += ("vllm",)
    return extras


def _existing(path: Path | None, option: str) -> Path | None:
    """Raises ConfigError for a file that is missing."""
    if path is not None and not path.is_file():
        raise ConfigError(f"{option}: {path} does not exist")
    return path


def _stem(source: Source) -> str:
    """The start of the folder's name: that of the class or function, or of the file."""
    return (source.single and source.single.name) or source.file.name.partition(".")[0]


def describe(context: ImageContext, target: Path) -> str:
    """Describes the written context of the image."""
    model, lock = context.model, context.lock
    packages = f"{len(lock.others)} packages"
    torch = f" and {', '.join(lock.torch)} from {lock.torch_index}" if lock.torch else ""
    return (
        f"Written: {target}\n"
        f"  {model.name}: {counted(model.files, 'file')}, {filesize.decimal(model.size)}\n"
        f"  {packages} in the versions of this environment{torch}"
    )


def _next_steps(build: str | None, program: str, tag: str, name: str) -> str:
    token = "choose-your-own"  # noqa: S105 - the reader chooses
    commands = [build] if build else []
    commands += [f"{program} run --rm -p 8080:8080 -e MODELSERVER_INFERENCE_TOKEN={token} {shlex.quote(tag)}"]
    lines = "".join(f"\n    {command}" for command in commands)
    ask = f'curl -H "Authorization: Bearer {token}" localhost:8080/predictions/{name} -T FILE'
    title = "Build and run it:" if build else "Run it:"
    return f"\n{title}\n{lines}\n\nThen send it a request:\n\n    {ask}"
