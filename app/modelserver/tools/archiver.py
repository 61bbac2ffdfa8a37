"""``modelserver-archive``: packs a model as torch-model-archiver does (reference 11.1), and with ``workflow``
as its first argument a workflow as torch-workflow-archiver does (reference 11.2).

Archives are reproducible: apart from ``createdOn`` (which ``SOURCE_DATE_EPOCH`` fixes), they depend only on
their inputs. Entries are sorted and have no owner and no time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import glob
import gzip
import io
import json
import logging
import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Union
from uuid import uuid4

import yaml
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from modelserver import __version__
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.models.settings.model_defaults import RUNTIMES
from modelserver.tools.commands import exit_status

if TYPE_CHECKING:
    from typing_extensions import Self

StrPath = Union[str, "os.PathLike[str]"]
Report = Callable[[int, int], None]
"""Called with the bytes packed so far and the total."""
Count = Callable[[int], None]
"""Called with the size of each packed piece."""
Entries = Iterator[tuple[str, int, io.RawIOBase]]
"""Name, size and content of each entry."""

BUILT_IN_HANDLERS: Final = (
    "base_handler",
    "text_classifier",
    "image_classifier",
    "object_detector",
    "image_segmenter",
    "densenet_handler",
    "tabular",
    "vllm_handler",
)
TORCHSERVE_HANDLERS: Final = ("dali_image_classifier", "trt_llm_handler")
"""Built-in handlers of TorchServe that this server does not have; archives for TorchServe may name them."""
SUFFIXES: Final = {"default": ".mar", "zip-store": ".mar", "tgz": ".tar.gz", "no-archive": ""}
FORMATS: Final = tuple(SUFFIXES)
WORKFLOW: Final = "workflow"
WORKFLOW_MANIFEST: Final = "WAR-INF/MANIFEST.json"

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_\-.]*$"
SKIPPED_FOLDERS: Final = ("__MACOSX", "__pycache__")
_PATTERN: Final = re.compile(r"[*?\[\]]")
_CHUNK: Final = 1 << 20
_SHOW_PROGRESS_FROM: Final = 32 << 20  # bytes
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


class ArchiverError(Exception):
    """Why an archive cannot be made; the message is for the user."""


@dataclass
class ArchiveConfig:
    """What goes into an archive, and where the archive goes.

    ``handler`` is a built-in handler's name, or a file with or without ``.py``, with or without a colon and a
    function. ``extra_files`` are separated by commas: files, directories (their contents) and glob patterns.
    """

    model_name: str
    handler: str
    version: str
    serialized_file: StrPath | None = None
    model_file: StrPath | None = None
    extra_files: str | None = None
    runtime: str = "python"
    export_path: StrPath = "."
    archive_format: str = "default"
    force: bool = False
    requirements_file: StrPath | None = None
    config_file: StrPath | None = None

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Self:
        """From the parsed command line, or any object with such attributes; others are ignored.

        What is missing has its default. Raises AttributeError for a missing name, handler or version.
        """
        required = ("model_name", "handler", "version")
        names = [each.name for each in fields(cls) if each.name in required or hasattr(args, each.name)]
        return cls(**{name: getattr(args, name) for name in names})


@dataclass(frozen=True, slots=True)
class WorkflowConfig:
    """What goes into a workflow's archive; ``handler`` is the file of its functions."""

    workflow_name: str
    spec_file: StrPath
    handler: StrPath | None = None
    extra_files: str | None = None
    export_path: StrPath = "."
    force: bool = False


def build_workflow(config: WorkflowConfig) -> Path:
    """Write a workflow's archive and return its path. Raises ``ArchiverError`` and ``OSError``."""
    check_name(config.workflow_name, "workflow")
    target = _in_folder(config.export_path, f"{config.workflow_name}.war", force=config.force)
    contents: dict[str, Path] = {}
    for path in (config.spec_file, config.handler):
        _add_file(contents, path)
    for item in (config.extra_files or "").split(","):
        _add_extra(contents, item.strip())
    _warn_of_yaml(config.spec_file)
    if config.handler:
        _warn_of_syntax(Path(config.handler))
    named = {
        "workflowName": config.workflow_name,
        "specFile": _base_name(config.spec_file),
        "handler": _base_name(config.handler),
    }
    manifest = {"createdOn": creation_time(), "workflow": named, "archiverVersion": __version__}
    entries = _entries(contents, json.dumps(manifest, indent=2).encode(), WORKFLOW_MANIFEST)
    _put_in_place(target, lambda partial: _write_zip("default", partial, entries))
    return target


def build_archive(config: ArchiveConfig, report: Report | None = None) -> Path:
    """Write the archive and return its path. Raises ``ArchiverError``, ``FileNotFoundError``, ``OSError``.

    Inputs are not copied first; the archive appears when it is complete.
    """
    target = _target(config)
    contents = collect(config)
    warn_of_mistakes(config, contents)
    _pack(config, target, contents, manifest_text(config), report)
    return target


def pack_folder(
    config: ArchiveConfig, folder: StrPath, manifest: str, instead: Mapping[str, Path] | None = None
) -> Path:
    """Write an archive of a folder with this manifest, overwriting an existing one.

    Only the name, format and path in ``config`` are used. ``instead`` are files by their archive names, which
    add to or replace the folder's. Raises as ``build_archive``.
    """
    target = _target(replace(config, force=True))
    contents: dict[str, Path] = {}
    _add_folder(contents, Path(folder), "", (Path(folder).resolve(),))
    contents.update(instead or {})
    _pack(config, target, contents, manifest, None)
    return target


def _pack(
    config: ArchiveConfig, target: Path, contents: dict[str, Path], text: str, report: Report | None
) -> None:
    contents.pop(MANIFEST_PATH, None)
    entries = _entries(contents, text.encode(), MANIFEST_PATH, report)
    _put_in_place(target, lambda partial: _write(config, partial, entries))


def _put_in_place(target: Path, write: Callable[[Path], None]) -> None:
    """The archive appears when it is complete, and replaces what is there."""
    partial = target.with_name(f".{uuid4().hex}.part")
    try:
        write(partial)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        partial.replace(target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def manifest_text(config: ArchiveConfig) -> str:
    """The text of the manifest."""
    return json.dumps(make_manifest(config), indent=2)


def make_manifest(config: ArchiveConfig) -> dict[str, object]:
    """The manifest (reference 10.2); file names are without folders."""
    model = {
        "modelName": config.model_name,
        "serializedFile": _base_name(config.serialized_file),
        "handler": _base_name(config.handler),
        "modelFile": _base_name(config.model_file),
        "modelVersion": config.version,
        "requirementsFile": _base_name(config.requirements_file),
        "configFile": _base_name(config.config_file),
    }
    return {
        "createdOn": creation_time(),
        "runtime": config.runtime,
        "model": {key: value for key, value in model.items() if value},
        "archiverVersion": __version__,
    }


def make_parser() -> argparse.ArgumentParser:
    """The flags of torch-model-archiver."""
    parser = argparse.ArgumentParser(
        prog="modelserver-archive",
        description="Pack a model, its handler and its files into one archive.",
        epilog=f"To pack a workflow, see modelserver-archive {WORKFLOW} --help.",
    )
    add = parser.add_argument
    add("--model-name", required=True, help="name of the model, and of the archive without its suffix")
    add("-v", "--version", required=True, help="version of the model")
    add(
        "--handler",
        required=True,
        help=f"file with the handler, optionally with :function, or one of {', '.join(BUILT_IN_HANDLERS)}",
    )
    add("--serialized-file", help="weights (.pt, .pth) or an executable model (TorchScript, .pt2, ONNX)")
    add("--model-file", help="Python file with the class of an eager model")
    add("--extra-files", help="comma-separated files, directories and patterns to add")
    add("--runtime", choices=RUNTIMES, default="python", help="what runs the handler (default: python)")
    add("--export-path", default=".", help="directory for the archive (default: the current one)")
    add(
        "--archive-format",
        choices=FORMATS,
        default="default",
        help="default: compressed .mar; zip-store: plain .mar; tgz: .tar.gz; no-archive: a directory",
    )
    add("-f", "--force", action="store_true", help="overwrite an existing archive")
    add("-r", "--requirements-file", help="requirements.txt of the handler")
    add("-c", "--config-file", help="model-config.yaml")
    return parser


def make_workflow_parser() -> argparse.ArgumentParser:
    """The flags of torch-workflow-archiver."""
    parser = argparse.ArgumentParser(
        prog=f"modelserver-archive {WORKFLOW}",
        description="Pack a workflow's specification and functions into one archive.",
    )
    add = parser.add_argument
    add("--workflow-name", required=True, help="name of the workflow, and of the archive without its suffix")
    add("--spec-file", required=True, help="YAML file with its models and their order")
    add("--handler", help="Python file with its functions")
    add("--export-path", default=".", help="directory for the archive (default: the current one)")
    add("-f", "--force", action="store_true", help="overwrite an existing archive")
    add("--extra-files", help="comma-separated files, directories and patterns to add")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: 0, or 1 with a message on standard error (2 for a wrong command line)."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [WORKFLOW]:
        workflow = WorkflowConfig(**vars(make_workflow_parser().parse_args(argv[1:])))
        return _print_path(lambda: build_workflow(workflow))
    config = ArchiveConfig.from_args(make_parser().parse_args(argv))

    def build() -> Path:
        with _progress(config.model_name) as report:
            return build_archive(config, report)

    return _print_path(build)


def _print_path(build: Callable[[], Path]) -> int:
    """The exit status, after printing the archive's path, or why there is none."""

    def work() -> int:
        print(build())
        return 0

    return exit_status(work, {ArchiverError: 1, OSError: 1})


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Report]:
    """A progress bar on standard error for large files, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None, visible=False)
        yield lambda packed, total: bar.update(
            task, completed=packed, total=total, visible=total >= _SHOW_PROGRESS_FROM
        )


def _target(config: ArchiveConfig) -> Path:
    """The archive's path, after checking name, directory and ``--force``."""
    check_name(config.model_name)
    check_runtime(config.runtime)
    check_format(config.archive_format)
    name = f"{config.model_name}{SUFFIXES[config.archive_format]}"
    return _in_folder(config.export_path, name, force=config.force)


def _in_folder(export_path: StrPath, name: str, *, force: bool) -> Path:
    """The path of a new archive; its folder is made."""
    folder = Path(export_path)
    if folder.exists():
        check_directory(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    if target.exists():
        check_overwriting(target, force=force)
    return target


def check_name(name: str, kind: str = "model") -> None:
    """Raises ``ArchiverError`` for an invalid name."""
    if not re.fullmatch(_NAME, name):
        raise ArchiverError(
            f"{kind.capitalize()} name contains special characters.\n"
            f"The allowed regular expression filter for {kind} name is: {_NAME}"
        )


def check_directory(path: StrPath) -> None:
    """Raises ``ArchiverError`` if it is not a directory."""
    if not Path(path).is_dir():
        raise ArchiverError(
            f"Given export-path {os.fspath(path)} is not a directory. Point to a valid export-path directory."
        )


def check_overwriting(target: Path, *, force: bool) -> None:
    """Raises ``ArchiverError`` unless what is at the path may be replaced; logs a warning then."""
    if not force:
        kind = WORKFLOW if target.suffix == ".war" else "model"
        raise ArchiverError(
            f"{target} already exists.\n"
            f"Please specify --force/-f option to overwrite the {kind} archive output file.\n"
            "See -h/--help for more details."
        )
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_PATH).is_file():
        raise ArchiverError(f"{target} is a directory without {MANIFEST_PATH}; it is not overwritten.")
    _LOG.warning("Overwriting %s ...", target)


def check_runtime(runtime: str) -> None:
    """Raises ``ArchiverError`` for an unknown runtime."""
    _check_choice(runtime, RUNTIMES, "runtime")


def check_format(archive_format: str) -> None:
    """Raises ``ArchiverError`` for an unknown format."""
    _check_choice(archive_format, FORMATS, "archive format")


def _check_choice(value: str, allowed: Sequence[str], flag: str) -> None:
    if value not in allowed:
        raise ArchiverError(f"Invalid {flag} {value!r}: choose from {', '.join(allowed)}.")


def collect(config: ArchiveConfig) -> dict[str, Path]:
    """From entry name to file; later files replace earlier ones of the same name (reference 11.1).

    Raises ``FileNotFoundError``, and ``ArchiverError`` for folders that link to themselves.
    """
    contents: dict[str, Path] = {}
    for path in (config.model_file, config.serialized_file, _handler_file(config.handler)):
        _add_file(contents, path)
    for item in (config.extra_files or "").split(","):
        _add_extra(contents, item.strip())
    for path in (config.requirements_file, config.config_file):
        _add_file(contents, path)
    return dict(sorted(contents.items()))


def _handler_file(handler: str) -> str | None:
    """The file to pack for a handler; none for a built-in one."""
    if handler in (*BUILT_IN_HANDLERS, *TORCHSERVE_HANDLERS):
        return None
    file = handler.rpartition(":")[0] if ":" in handler else handler
    return file if file.endswith(".py") else f"{file}.py"


def _add_file(contents: dict[str, Path], path: StrPath | None) -> None:
    if path is None or not os.fspath(path):
        return
    if not Path(path).is_file():
        raise FileNotFoundError(f"File does not exist: {os.fspath(path)}")
    _put(contents, Path(path).name, Path(path))


def _add_extra(contents: dict[str, Path], item: str) -> None:
    if not item:
        return
    paths = [item] if Path(item).exists() else sorted(glob.glob(item))
    if not paths:
        if not _PATTERN.search(item):
            raise FileNotFoundError(f"File does not exist: {item}")
        _LOG.warning("No file matches the pattern %s", item)
    for path in map(Path, paths):
        if path.is_dir():
            _add_folder(contents, path, "", (path.resolve(),))
        else:
            _add_file(contents, path)


def _add_folder(contents: dict[str, Path], folder: Path, prefix: str, above: tuple[Path, ...]) -> None:
    """Adds a folder without hidden and cache folders; follows links, but not in cycles."""
    for child in sorted(folder.iterdir()):
        if not child.is_dir():
            if not child.is_file():
                raise FileNotFoundError(f"File does not exist: {child}")
            _put(contents, prefix + child.name, child)
            continue
        if child.name.startswith(".") or child.name in SKIPPED_FOLDERS:
            continue
        if child.resolve() in above:
            raise ArchiverError(f"{child} is a link to a directory that contains it.")
        _add_folder(contents, child, f"{prefix}{child.name}/", (*above, child.resolve()))


def _put(contents: dict[str, Path], name: str, path: Path) -> None:
    earlier = contents.get(name)
    if earlier is not None and earlier.resolve() != path.resolve():
        _LOG.warning("%s replaces %s: both would be %s in the archive", path, earlier, name)
    contents[name] = path


def warn_of_mistakes(config: ArchiveConfig, contents: dict[str, Path]) -> None:
    """Warn of mistakes that would only show when the model is loaded, unlike torch-model-archiver."""
    if config.handler in TORCHSERVE_HANDLERS:
        _LOG.warning("%s is a TorchServe handler that modelserver does not have", config.handler)
    if config.handler in BUILT_IN_HANDLERS and not config.serialized_file and not config.model_file:
        _LOG.warning("Neither --serialized-file nor --model-file is given: %s finds no model", config.handler)
    if config.serialized_file and not Path(config.serialized_file).stat().st_size:
        _LOG.warning("%s is empty", config.serialized_file)
    for source in (config.model_file, _handler_file(config.handler)):
        if source is not None:
            _warn_of_syntax(Path(source))
    if config.config_file:
        _warn_of_yaml(config.config_file)
    folded: dict[str, str] = {}
    for name in contents:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            _LOG.warning("%s and %s differ in upper and lower case only: servers refuse this", other, name)


def _warn_of_yaml(file: StrPath) -> None:
    try:
        yaml.safe_load(Path(file).read_bytes())
    except yaml.YAMLError as error:
        _LOG.warning("%s is not valid YAML: %s", file, " ".join(str(error).split()))


def _warn_of_syntax(source: Path) -> None:
    with source.open("rb") as file:
        is_binary = b"\0" in file.read(1 << 13)
    if is_binary:
        _LOG.warning(
            "%s is not Python source, as --model-file and --handler are; --serialized-file is for weights",
            source,
        )
        return
    try:
        ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        _LOG.warning("%s is not valid Python: %s", source, error)


def _write(config: ArchiveConfig, partial: Path, entries: Entries) -> None:
    if config.archive_format == "tgz":
        _write_tar(config.model_name, partial, entries)
    elif config.archive_format == "no-archive":
        for name, _, content in entries:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            with (partial / name).open("wb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
    else:
        _write_zip(config.archive_format, partial, entries)


def _write_zip(archive_format: str, partial: Path, entries: Entries) -> None:
    method = zipfile.ZIP_DEFLATED if archive_format == "default" else zipfile.ZIP_STORED
    with zipfile.ZipFile(partial, "w") as archive:
        for name, size, content in entries:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = method
            info.external_attr = 0o100644 << 16
            info.file_size = size
            with archive.open(info, "w") as entry:
                shutil.copyfileobj(content, entry, _CHUNK)


def _write_tar(model_name: str, partial: Path, entries: Entries) -> None:
    with (
        partial.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, size, content in entries:
            info = tarfile.TarInfo(f"{model_name}/{name}")
            info.size = size
            archive.addfile(info, content)


def _entries(contents: dict[str, Path], manifest: bytes, place: str, report: Report | None = None) -> Entries:
    """The manifest is at its place among the others."""
    total = sum(path.stat().st_size for path in contents.values()) + len(manifest)
    packed = 0

    def count(size: int) -> None:
        nonlocal packed
        packed += size
        if report is not None:
            report(packed, total)

    for name in sorted([*contents, place]):
        with io.BytesIO(manifest) if name == place else contents[name].open("rb") as content:
            yield name, _size(content), _Counted(content, count)


def _size(content: IO[bytes]) -> int:
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    return size


class _Counted(io.RawIOBase):
    """A file that reports how much of it has been read."""

    def __init__(self, source: IO[bytes], count: Count) -> None:
        self._source = source
        self._count = count

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._count(len(data))
        return data


def _base_name(path: StrPath | None) -> str | None:
    return Path(path).name if path is not None else None


def creation_time() -> str:
    """The time of creation in TorchServe's format: local time, or ``SOURCE_DATE_EPOCH``."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        datetime.fromtimestamp(int(fixed), timezone.utc) if fixed.isdecimal() else datetime.now().astimezone()
    )
    return now.strftime("%d/%m/%Y %H:%M:%S")


if __name__ == "__main__":
    sys.exit(main())
