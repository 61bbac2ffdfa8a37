"""The definition of a setting, from which reading, checking, writing and documenting it derive."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar, cast

from modelserver.models.settings.model_defaults import models_text

_T = TypeVar("_T")

# The largest count or time: the range of TorchServe's integers; more would overflow a clock.
LARGEST = 2**31 - 1


class Kind(Enum):
    """How the text of a value is parsed; the enum's value describes it."""

    BOOLEAN = "true or false"
    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    CHOICE = "one of"
    ADDRESS = "http[s]://host[:port] or unix:/path"
    PATH = "a path"
    FILE = "an existing file"
    STORE = "an existing directory, or a URL like s3://bucket/folder"
    REGEX = "a regular expression"
    URL_PATTERNS = "regular expressions, separated by commas"
    LOAD_LIST = "[name=]archive items, separated by commas, or all"
    JSON = "a JSON object"
    COUNT = "auto, or a whole number"
    MODELS = 'JSON like {"name": {"version": {"batchSize": 8}}}'


# The source of a value that nobody has set.
DEFAULT = "default"
_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class Key:
    """One setting, the row of the field ``name``.

    ``kind`` and ``choices`` default to those of the field's annotation. ``default`` is the field's default as
    text, empty if not set. ``variable`` is the environment variable if it is not ``TS_`` and the name in
    capitals, None if there is none. ``torchserve`` is the default under ``compat_defaults=torchserve`` if it
    differs.
    """

    group: str
    summary: str
    kind: Kind = Kind.TEXT
    variable: str | None = ""
    flag: str | None = None
    minimum: float | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    torchserve: str | None = None
    name: str = ""
    default: str = ""

    @property
    def env(self) -> str | None:
        """Its environment variable, read with ``enable_envvars_config=true``; if :attr:`is_ours`, always."""
        return f"TS_{self.name.upper()}" if self.variable == "" else self.variable

    def masked(self, value: object) -> str:
        """The value as one line of text; a secret is hidden."""
        return "********" if self.secret else one_line(property_text(value))

    def origin(self, source: str, *, as_torchserve: bool) -> str:
        """The source of its value, in words."""
        return "default of TorchServe" if as_torchserve and self.torchserve and source == DEFAULT else source

    @property
    def is_for_java(self) -> bool:
        """Whether it has no effect: it is for TorchServe's Java server."""
        return self.group == JAVA

    @property
    def is_ours(self) -> bool:
        """Whether its variable is our own, which is always read."""
        return (self.env or "").startswith("MODELSERVER_")

    @property
    def allowed(self) -> str:
        """The allowed values, in words that fit before ``is needed``."""
        if self.kind is Kind.CHOICE:
            return f"one of {', '.join(self.choices)}"
        if self.minimum is not None and self.maximum is not None:
            return f"{self.kind.value} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self.kind.value} of at least {self.minimum}"
        return str(self.kind.value)


OWN = "modelserver"
TORCHSERVE = "torchserve"
"""The two sets of defaults."""


def property_text(value: object) -> str:
    """A setting's value as text in a file; empty if not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, tuple):
        return ",".join(map(property_text, value))
    if isinstance(value, Mapping):
        return models_text(value) if value else ""
    return str(value)


class SettingGroup(str):
    """The title of settings that are documented together; called, it makes a field of one of them."""

    __slots__ = ()

    def __call__(self, default: _T, summary: str, **more: Any) -> _T:
        """A dataclass field with its default and row, a :class:`Key` of these arguments."""
        key = Key(str(self), summary, **more)
        row: Any
        if isinstance(default, dict):
            row = field(default_factory=dict, metadata={"key": key})
        else:
            text = f"{default:g}" if isinstance(default, float) else property_text(default)
            metadata = {"key": replace(key, default=text)}
            row = field(default=default, repr=not key.secret, metadata=metadata)
        return cast("_T", row)


JAVA = SettingGroup("Accepted for compatibility with TorchServe")


def keys_of(kind: type) -> dict[str, Key]:
    """The rows of a dataclass's settings by name."""
    rows = ((each, each.metadata.get("key")) for each in fields(kind))
    return {each.name: _completed(row, each.name, each.type) for each, row in rows if row is not None}


# By annotation; for others the row gives the kind.
_KINDS = {
    "bool": Kind.BOOLEAN,
    "int": Kind.INTEGER,
    "float": Kind.NUMBER,
    "Path": Kind.PATH,
    "Address": Kind.ADDRESS,
    "re.Pattern[str]": Kind.REGEX,
    "Literal['auto'] | int": Kind.COUNT,
}


def _completed(row: Key, name: str, annotation: Any) -> Key:
    text = str(annotation).removesuffix(" | None")
    if text.startswith("Literal[") and text.endswith("]"):
        return replace(row, name=name, kind=Kind.CHOICE, choices=literal_eval(f"({text[8:-1]},)"))
    return replace(row, name=name, kind=_KINDS.get(text, row.kind) if row.kind is Kind.TEXT else row.kind)


def one_line(text: str) -> str:
    """The text in one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_VALUE else line[: _LONGEST_VALUE - 1] + "…"
