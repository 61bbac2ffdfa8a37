"""The context of a model's image: everything that its Dockerfile copies, in one folder."""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from modelserver.errors import ConfigError
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.settings.model_defaults import ModelDefaults, models_text
from modelserver.models.settings.properties import dump
from modelserver.tools.archiver import ArchiverError, check_name
from modelserver.tools.build.lock import PROCESS_ONE, Lock, imported_modules, lock, requirement_lines
from modelserver.tools.build.model import MARK, PackedModel, is_context, pack_model

# The wheel of the modelserver that runs here: the image serves with the same code, whatever it came from.

_PACKAGES: Final = ("modelserver", "modelserver_handlers")
_DESCRIPTION: Final = ("METADATA", "WHEEL", "entry_points.txt")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


def write_wheel(folder: Path) -> Path:
    """Writes it into the folder. Raises ConfigError if modelserver is not installed."""
    try:
        package = metadata.distribution("modelserver")
    except metadata.PackageNotFoundError as error:
        raise ConfigError("modelserver is not installed as a package: install it with pip") from error
    described = f"modelserver-{package.version}.dist-info"
    path = folder / f"modelserver-{package.version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_sources(), *_description(package, described)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
            _add(wheel, name, content)
        record.append(f"{described}/RECORD,,\n")
        _add(wheel, f"{described}/RECORD", "".join(record).encode())
    return path


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - they are installed together
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _description(package: metadata.Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in _DESCRIPTION:
        text = package.read_text(name)
        if text is not None:
            yield f"{folder}/{name}", text.encode()


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    wheel.writestr(entry, content)


BASE: Final = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"
HOME: Final = "/home/model-server"
# As those of the project's image, scripts/container.properties.
SETTINGS: Final = {
    "enable_envvars_config": "true",
    "inference_address": "http://0.0.0.0:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "grpc_inference_address": "0.0.0.0",  # noqa: S104 - a container is reached by its own address
    "grpc_management_address": "127.0.0.1",
    "model_store": f"{HOME}/model-store",
    "log_files": "false",
    "log_probes": "false",
}
_REQUIREMENTS: Final = "requirements.txt"

_DOCKERFILE: Final = """\
{mark} {source}: the files beside it are all that the image needs.

ARG BASE={base}
FROM ${{BASE}}
# Group 0 may do what the owner may: OpenShift runs containers as a user without a name, in that group.
RUN useradd --uid 1000 --user-group --create-home --home-dir {home} model-server \\
    && mkdir {home}/logs \\
    && chown -R 1000:0 {home} \\
    && chmod -R g=u {home} \\
    && python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \\
    HOME={home} \\
    USER=model-server \\
    PYTHONUNBUFFERED=1
WORKDIR {home}
# Another index of packages than PyPI.
ARG PIP_INDEX_URL
# The list has all packages, so nothing else is installed; versions are those that the model was tried with.
COPY requirements.txt /context/
RUN pip install --no-cache-dir --no-deps -r /context/requirements.txt
{torch}COPY wheels /context/wheels
RUN pip install --no-cache-dir --no-deps /context/wheels/*.whl && pip check
COPY config.properties ./
# For what a configuration mounted in its place does not set.
COPY config.properties /etc/modelserver.properties
COPY model-store model-store
# By number, so that Kubernetes can tell that it is not root.
USER 1000:1000

# Inference over HTTP and gRPC. Management and metrics listen on the container's loopback by default.
EXPOSE 8080 7070
STOPSIGNAL SIGTERM
# Asks what needs no token, where the server says that it listens.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \\
    CMD ["python", "-m", "modelserver.tools.container.healthcheck"]
ENTRYPOINT ["dumb-init", "--single-child", "--", "python", "-m", "modelserver.tools.container"]
"""
_TORCH: Final = """\
# The build of torch that is installed where this was written. Without CUDA:
#   --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_INDEX={index}
COPY requirements-torch.txt /context/
RUN pip install --no-cache-dir --index-url "${{TORCH_INDEX}}" -r /context/requirements-torch.txt
"""


@dataclass(frozen=True, slots=True)
class Source:
    """What the image serves. ``single`` is a script or model file; ``query`` of a hub model's folder."""

    text: str
    file: Path
    single: SingleFile | None = None
    query: str = ""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What the image has beside the model. ``properties`` is the text of further settings.

    ``extras`` are requirements of the kind of model, such as ``modelserver[transformers]``.
    """

    name: str | None = None
    base: str = BASE
    requirements: Path | None = None
    extras: tuple[str, ...] = ()
    properties: bytes = b""
    defaults: ModelDefaults = field(default_factory=ModelDefaults)


@dataclass(frozen=True, slots=True)
class ImageContext:
    """A context that was written."""

    model: PackedModel
    lock: Lock


def write_context(target: Path, source: Source, options: ImageOptions) -> ImageContext:
    """Writes the context, in place of one that was written before. Raises ConfigError and OSError."""
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        folder = Path(temporary) / target.name
        for name in ("model-store", "wheels"):
            (folder / name).mkdir(parents=True)
        model = pack_model(source.file, source.single, folder / "model-store", options.name)
        _check(model, options)
        locked = _lock(model, folder / "model-store" / model.name, options)
        write_wheel(folder / "wheels")
        _write_requirements(folder, locked)
        (folder / "config.properties").write_bytes(_properties(model, source, options))
        (folder / "Dockerfile").write_text(_dockerfile(source, options.base, locked), encoding="utf-8")
        _make_readable(folder)
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    return ImageContext(model, locked)


def check_target(target: Path) -> None:
    """Raises ConfigError for a folder that has something else in it."""
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not is_context(target):
        raise ConfigError(f"--output={target}: it exists, and `modelserver build` has not written it")


def _check(model: PackedModel, options: ImageOptions) -> None:
    try:
        check_name(model.name)
    except ArchiverError as error:
        raise ConfigError(f"{error}\nAnother name is set with --name.") from error
    if options.defaults != ModelDefaults() and (model.manifest.missing or model.manifest.config_file):
        raise ConfigError(
            "--batch-size, --max-batch-delay and --workers are for scripts and model files: this model has "
            "them in its configuration, or gets them in `models=` of --ts-config"
        )
    missing = [module for module in model.needs if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} cannot be imported here, and the model's handler needs it: install it, "
            "and try the model with `modelserver serve`; the image gets the versions that are installed"
        )


def _lock(model: PackedModel, folder: Path, options: ImageOptions) -> Lock:
    """The packages of the model: its requirements file's, and those that it imports."""
    named = options.requirements or folder / (model.manifest.requirements_file or _REQUIREMENTS)
    lines = requirement_lines(named) if named.is_file() else []
    return lock([*lines, *options.extras], {*imported_modules(folder), *model.needs})


def _write_requirements(folder: Path, locked: Lock) -> None:
    text = "\n".join([*locked.others, PROCESS_ONE, ""])
    (folder / _REQUIREMENTS).write_text(text, encoding="utf-8")
    if locked.torch:
        text = "\n".join([*locked.torch, ""])
        (folder / "requirements-torch.txt").write_text(text, encoding="utf-8")


def _properties(model: PackedModel, source: Source, options: ImageOptions) -> bytes:
    """The settings: the user's, followed by those of the container, as the last of a key counts."""
    own = {**SETTINGS, "load_models": f"{model.name}={model.name}{source.query}"}
    if options.defaults != ModelDefaults():
        own["models"] = models_text({model.name: {model.manifest.model_version: options.defaults}})
    return options.properties + (b"\n\n" if options.properties else b"") + dump(own).encode("ascii")


def _dockerfile(source: Source, base: str, locked: Lock) -> str:
    torch = _TORCH.format(index=locked.torch_index) if locked.torch else ""
    text = " ".join(source.text.split())
    return _DOCKERFILE.format(mark=MARK, source=text, base=base, home=HOME, torch=torch)


def _make_readable(folder: Path) -> None:
    """Gives files the modes with which the image's user may read them."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
