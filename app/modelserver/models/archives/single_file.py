"""What is served without an archive: a handler's script, a model file, or a ``torchvision://`` URL.

The server makes an archive's folder of a file, from which all else goes on as usual. A script is copied, with
the sources beside it, so that a later change of the file does not reach workers that are started again; what
else is in its folder is linked, as handlers read files beside their own.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from modelserver.errors import BadRequest, InvalidModel
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.models.archives.model_kinds import ModelKind, Seen, advice, look
from modelserver.models.archives.store import SUFFIXES

_SCRIPT: Final = re.compile(r"(?P<path>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?(?:\?model_file=(?P<file>.+))?")
# Suffix to that of the link, by which the handler knows the format, where the content does not tell it.
_MODELS: Final = {
    **dict.fromkeys((".pt", ".pth", ".ts", ".torchscript"), ".pt"),
    ".pt2": ".pt2",
    ".onnx": ".onnx",
    **dict.fromkeys((".joblib", ".pkl", ".pickle"), ".joblib"),
    **{suffix: suffix for suffix in (".skops", ".json", ".ubj", ".safetensors", ".gguf")},
}
_HANDLERS: Final = {
    **dict.fromkeys((".pt", ".pt2", ".onnx"), "base_handler"),
    **dict.fromkeys((".joblib", ".skops", ".json", ".ubj"), "tabular"),
}
# Packages that the worker has imported before the script, which could not be imported under their name.
_TAKEN: Final = frozenset({"modelserver", "modelserver_handlers", "ts", "torch", "numpy", "msgspec"})
_LARGEST_SOURCE: Final = 1 << 20
_COMPUTED: Final = re.compile(rb"\b(import_module|__import__|exec|spec_from_file_location|runpy)\b")
_MANIFEST_FOLDER: Final = MANIFEST_PATH.partition("/")[0]


@dataclass(frozen=True, slots=True)
class SingleFile:
    """What a URL such as ``handler.py:Sentiment?model_file=weights.pt`` names.

    ``path`` and ``model_file`` are as written until they are located; ``name`` is that of a class or function
    in a script, and empty for the only one. ``trusts_pickles``: a model file may be a pickle, whose loading
    can run any code.
    """

    path: str
    name: str = ""
    model_file: str = ""
    trusts_pickles: bool = False

    @classmethod
    def parse(cls, url: str) -> SingleFile | None:
        """None for a URL that names something else."""
        if match := _SCRIPT.fullmatch(url):
            return cls(match["path"], match["name"] or "", match["file"] or "")
        return cls(url) if Path(url).suffix.lower() in _MODELS else None

    def lay_out(self, folder: Path) -> None:
        """Make ``folder`` that of an archive; ``path`` and ``model_file`` are absolute.

        Raises ``InvalidModel`` for a name that the script does not have, and for a model file that cannot be
        served as it is, with what to do; and ``OSError``.
        """
        path = Path(self.path)
        (folder / _MANIFEST_FOLDER).mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
        model = {"modelName": self.name or path.stem, "modelVersion": "1.0"}
        if path.suffix == ".py":
            model["handler"] = self._lay_out_script(path, folder)
            if self.model_file:
                model["serializedFile"] = _linked(folder, Path(self.model_file), Path(self.model_file).name)
        else:
            suffix = self._format_of(path)
            model["handler"] = _HANDLERS[suffix]
            model["serializedFile"] = _linked(folder, path, f"{path.stem}{suffix}")
        manifest = {"runtime": "python", "model": model}
        (folder / MANIFEST_PATH).write_text(json.dumps(manifest, indent=2), encoding="utf-8")

    @property
    def handler(self) -> str:
        """The built-in handler of such a model file, by its name; empty for a script."""
        return _HANDLERS.get(_MODELS.get(Path(self.path).suffix.lower(), ""), "")

    def _format_of(self, path: Path) -> str:
        """The suffix of a model file's format, by its content. Raises InvalidModel."""
        suffix, content = _MODELS[path.suffix.lower()], look(path)
        if suffix == ModelKind.PICKLE.value and content.kind in (
            ModelKind.UNKNOWN,
            ModelKind.MODULE,
            ModelKind.WEIGHTS,
        ):
            content = Seen(ModelKind.PICKLE, content.of)
        if content.kind is ModelKind.PICKLE and self.trusts_pickles:
            return ModelKind.PICKLE.value
        if problem := advice(path, content):
            raise InvalidModel(problem)
        suffix = content.kind.value or suffix
        if suffix not in _HANDLERS:
            raise InvalidModel(f"{path.name} is not what its name says: no {suffix} file.")
        return suffix

    def _lay_out_script(self, script: Path, folder: Path) -> str:
        """Returns the handler of the manifest."""
        if script.stem in _TAKEN:
            raise InvalidModel(
                f"{script.name} hides the package {script.stem}: give the script another name."
            )
        if self.name:
            _check_name(script, self.name)
        # A module's name has no dots.
        module = f"{script.stem.replace('.', '_')}.py"
        shutil.copyfile(script, folder / module)
        reached = _reached(script)
        for neighbour in script.parent.iterdir():
            if reached is not None and neighbour.suffix == ".py" and neighbour.stem not in reached:
                continue
            if _is_of_use(neighbour.name) and not (folder / neighbour.name).exists():
                _bring(neighbour, folder / neighbour.name)
        return f"{module}:{self.name}" if self.name else module


def _reached(script: Path) -> set[str] | None:
    """The modules beside a script that its imports lead to; None if that cannot be told.

    Others stay out of the folder, as what they import would be imported ahead for the workers.
    """
    folder, reached, ahead = script.parent, set[str](), [script.stem]
    while ahead:
        module = ahead.pop()
        if module in reached:
            continue
        if (folder / module / "__init__.py").is_file():
            return None
        source = folder / f"{module}.py"
        if source.is_file():
            names = _imports(source)
            if names is None:
                return None
            reached.add(module)
            ahead += names
    return reached


def _imports(source: Path) -> set[str] | None:
    """The first parts of all names in imports; None if it cannot be read, or computes what it imports."""
    if source.stat().st_size > _LARGEST_SOURCE:
        return None
    text = source.read_bytes()
    if _COMPUTED.search(text):
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    return modules - {""}


def _is_of_use(name: str) -> bool:
    """Whether a script may want what is beside it: not archives, caches, or what is hidden."""
    return not (name.startswith((".", "__pycache__")) or name == _MANIFEST_FOLDER or name.endswith(SUFFIXES))


def _bring(path: Path, place: Path) -> None:
    if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
        shutil.copyfile(path, place)
    else:
        place.symlink_to(path.absolute())


def _linked(folder: Path, path: Path, name: str) -> str:
    """Links the file into the folder, instead of another of its name; returns the name."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(path)
    return name


def _check_name(script: Path, name: str) -> None:
    """Raises InvalidModel, with the names that there are, if the script does not define or import it."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The worker will report it, with the line.
        return
    bound = set(_bound(body))
    if name in bound or "*" in bound:
        return
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = ", ".join(node.name for node in body if isinstance(node, kinds)) or "no class and no function"
    raise InvalidModel(f"{script.name} has no {name}: it defines {names}.")


def _bound(body: list[Any]) -> Iterator[str]:
    """The names that these statements bind in their module; ``*`` if that is not known."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name


# ``torchvision://<arch>?weights=…&seed=…``: a torchvision model without an archive.
#
# The server writes a model directory that names the network; the image classifier handler builds it in the
# worker.

_ARCH: Final = re.compile(r"[a-z][a-z0-9_]{0,99}")
_NAMED_WEIGHTS: Final = re.compile(r"DEFAULT|random|IMAGENET1K_[A-Z0-9_]{1,50}")
_WEIGHTS_FILE: Final = re.compile(r"[^/\\.][^/\\]*\.pth")
_PARAMETERS: Final = ("weights", "seed")
_MAX_SEED: Final = 2**63 - 1
_CONFIG_FILE: Final = "model-config.yaml"


@dataclass(frozen=True, slots=True)
class TorchvisionSource:
    """A torchvision network and the source of its weights.

    ``weights`` is ``DEFAULT``, ``IMAGENET1K_…``, ``random`` (from ``seed``) or a ``.pth`` file in the model
    store.
    """

    arch: str
    weights: str = "DEFAULT"
    seed: int = 0

    @classmethod
    def parse(cls, url: str) -> TorchvisionSource:
        """Raises ``BadRequest`` naming what is allowed."""
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
        except ValueError as error:
            raise _bad(url, "the form is torchvision://<arch>?weights=…&seed=…") from error
        if not _ARCH.fullmatch(parts.netloc) or parts.path not in ("", "/") or parts.fragment:
            raise _bad(url, "an architecture such as torchvision://resnet152 is needed")
        names = [name for name, _ in pairs]
        if unknown := [name for name in names if name not in _PARAMETERS]:
            raise _bad(url, f"unknown parameter {unknown[0]!r}; allowed are {' and '.join(_PARAMETERS)}")
        if len(set(names)) != len(names):
            raise _bad(url, "each parameter may be given once")
        values = dict(pairs)
        return cls(parts.netloc, _weights(url, values), _seed(url, values))

    @property
    def weights_file(self) -> str | None:
        """The file in the model store with the weights, if they come from one."""
        return None if _NAMED_WEIGHTS.fullmatch(self.weights) else self.weights

    def write(self, workdir: Path, weights_path: Path | None = None) -> Path:
        """Write the model directory into ``workdir`` and return it; ``weights_path`` is of ``weights_file``.

        Raises ``OSError``.
        """
        import yaml  # noqa: PLC0415 - servers of archives write none

        folder = workdir / uuid4().hex
        (folder / MANIFEST_PATH).parent.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
        weights = self.weights if weights_path is None else str(weights_path)
        network = {"arch": self.arch, "weights": weights, "seed": self.seed}
        config = yaml.safe_dump({"handler": {"torchvision": network}}, sort_keys=False)
        (folder / _CONFIG_FILE).write_text(config, encoding="utf-8")
        manifest = {
            "runtime": "python",
            "model": {
                "modelName": self.arch,
                "handler": "image_classifier",
                "modelVersion": "1.0",
                "configFile": _CONFIG_FILE,
            },
        }
        (folder / MANIFEST_PATH).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        return folder


def _weights(url: str, values: dict[str, str]) -> str:
    weights = values.get("weights", "DEFAULT")
    if not _NAMED_WEIGHTS.fullmatch(weights) and not _WEIGHTS_FILE.fullmatch(weights):
        allowed = "DEFAULT, IMAGENET1K_V1, IMAGENET1K_V2, random or a .pth file in the model store"
        raise _bad(url, f"weights={weights} is not allowed; use {allowed}")
    return weights


def _seed(url: str, values: dict[str, str]) -> int:
    text = values.get("seed", "0")
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > _MAX_SEED:
        raise _bad(url, f"seed={text} is not a whole number from 0 to {_MAX_SEED}")
    return int(text)


def _bad(url: str, reason: str) -> BadRequest:
    return BadRequest(f"Invalid url {url}: {reason}.")
