"""The manifest of an archive, ``MAR-INF/MANIFEST.json`` (reference 10.2)."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from modelserver.errors import InvalidModel
from modelserver.models.settings.model_defaults import RUNTIMES

MANIFEST_PATH: Final = "MAR-INF/MANIFEST.json"
DEFAULT_VERSION: Final = "1.0"
DEFAULT_RUNTIME: Final = "python"
_FILES: Final = ("serializedFile", "modelFile", "requirementsFile", "configFile")
_TEXTS: Final = ("description", "createdOn", "archiverVersion")
_TEXTS_OF_MODEL: Final = ("sourceVocab", "extensions", "description")

_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs"})  # controls, invisible formatting, lone surrogates
_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The fields that the server uses; ``None`` if the manifest does not set them.

    ``raw`` is the document as written, which handlers get as ``context.manifest``; ``missing``: the archive
    has no manifest.
    """

    model_name: str | None = None
    model_version: str = DEFAULT_VERSION
    handler: str | None = None
    runtime: str = DEFAULT_RUNTIME
    requirements_file: str | None = None
    config_file: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    missing: bool = False


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest; unknown and obsolete fields are only in ``raw``.

    Raises ``InvalidModel``: not a JSON object, a field of the wrong type, an unknown runtime, a handler or
    file name outside the archive.
    """
    raw, written = _documents(data)
    model = {} if written.get("model") is None else written["model"]
    if not isinstance(model, dict):
        raise _unparsable("model must be an object")
    text, of_model = _reader(written, ""), _reader(model, "model.")
    manifest = Manifest(
        model_name=of_model("modelName"),
        model_version=of_model("modelVersion") or DEFAULT_VERSION,
        handler=of_model("handler"),
        runtime=_runtime(written, text),
        requirements_file=of_model("requirementsFile"),
        config_file=of_model("configFile"),
        raw=raw,
    )
    if manifest.handler is not None:
        check_handler(manifest.handler)
    for name in _FILES:
        path = of_model(name)
        problem = None if path is None else _path_problem(path)
        if problem is not None:
            raise InvalidModel(f"Invalid {name} {path!r} in {MANIFEST_PATH}: {problem}.")
    # Fields that only handlers read must have the right type as well.
    for read, names in ((text, _TEXTS), (of_model, _TEXTS_OF_MODEL)):
        for name in names:
            read(name)
    return manifest


def check_handler(handler: str) -> None:
    """Refuse a handler that is not ``module``, ``module.py`` or ``module:function`` of the archive.

    Raises ``InvalidModel``; whether the module exists is checked by the worker (reference 12.2).
    """
    module, colon, function = handler.partition(":")
    problem = _path_problem(handler if _DRIVE.match(handler) else module)
    if problem is None and colon and not function.isidentifier():
        problem = "what follows the colon must be the name of a function"
    if problem is not None:
        raise InvalidModel(f"Invalid handler {handler!r}: {problem}.")


def _documents(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document twice: as Python values, and with numbers as they were written."""
    try:
        text = data.decode("utf-8-sig")
        raw = json.loads(text, parse_constant=_not_json)
        # A version written as the number 1.10 is version "1.10", not 1.1.
        written = json.loads(text, parse_float=str, parse_int=str)
        json.dumps(raw, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise _unparsable(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeError as error:
        raise _unparsable("it must be valid UTF-8") from error
    except RecursionError as error:
        raise _unparsable("it is nested too deeply") from error
    except ValueError as error:
        raise _unparsable(str(error)) from error
    if not isinstance(raw, dict):
        raise _unparsable("it must be a JSON object")
    return raw, written


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _reader(fields: Mapping[str, Any], where: str) -> Callable[[str], str | None]:
    def read(name: str) -> str | None:
        value = fields.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str):
            raise _unparsable(f"{where}{name} must be a string")
        if _unprintable(value):
            raise _unparsable(f"{where}{name} contains unprintable characters")
        return value

    return read


def _runtime(fields: Mapping[str, Any], text: Callable[[str], str | None]) -> str:
    if "runtime" not in fields:
        return DEFAULT_RUNTIME
    runtime = (text("runtime") or "").lower()
    name = next((known for known in RUNTIMES if known.lower() == runtime), None)
    if name is None:
        raise InvalidModel("Runtime is not defined or invalid.")
    return name


def _path_problem(path: str) -> str | None:
    """Why ``path`` cannot be a name inside the archive, or ``None``."""
    if not path.strip():
        return "a name is missing"
    if _unprintable(path):
        return "unprintable characters are not allowed"
    if "\\" in path or path.startswith("/") or _DRIVE.match(path):
        return "only names relative to the archive, with forward slashes, are allowed"
    return "it must not leave the archive" if ".." in path.split("/") else None


def _unprintable(text: str) -> bool:
    return any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def _unparsable(reason: str) -> InvalidModel:
    return InvalidModel(f"Failed to parse signature.json. {MANIFEST_PATH}: {reason}.")
