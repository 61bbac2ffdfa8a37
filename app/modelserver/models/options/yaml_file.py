"""Parses model-config.yaml (reference 9; kserve reference 1.7, 2.1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import yaml
from yaml.composer import Composer

from modelserver.errors import InvalidModel
from modelserver.models.options.table import CONFIG_KEYS, KNOWN, TORCHRUN_KEYS, Batcher, ModelConfig, Torchrun
from modelserver.models.options.values import CorrectedError, excerpt, whole
from modelserver.models.settings.key import LARGEST

_FILE = "model-config.yaml"
_LARGEST_DOCUMENT = 100_000  # nodes, aliases followed
_TOO_LARGE = f"more than {_LARGEST_DOCUMENT} values, aliases followed"
# How similar an unknown key must be to a known one to be reported as a typo.
_LIKENESS = 0.85
_LONGEST = 64
_LONGEST_NUMBER = 4300  # as Python's own limit for digits
_LOOKED_AT = 200  # unknown keys
# Of one worker.
MAX_PROCESSES = 256


def parse_model_config(text: str) -> tuple[ModelConfig, list[str]]:
    """Parses the file; the list has a warning for each value that was ignored or corrected.

    Values of the wrong type are ignored, as in TorchServe (reference 9). Raises InvalidModel unless it is a
    YAML mapping of plain data, and for invalid values of strict options such as ``batcher`` or ``torchrun``.
    """
    document = load_document(text, _FILE)
    warnings: list[str] = []
    values: dict[str, object] = {}
    for key, option in CONFIG_KEYS.items():
        value = document.get(key)
        if value is None:
            continue
        try:
            values[option.name] = option.values.read(value)
        except CorrectedError as error:
            values[option.name] = error.value
            warnings.append(f"model-config.yaml: {key}={value}: {error}, {error.value} is used")
        except ValueError as error:
            if option.is_strict:
                raise InvalidModel(f"model-config.yaml: {key}={excerpt(value)}: {error}") from None
            warnings.append(f"model-config.yaml: {key}={excerpt(value)} is ignored: {error}")
    if "torchrun" in values:
        values["torchrun"] = _torchrun(cast("dict[str, object]", values["torchrun"]), warnings)
    if "batcher" in document:
        values["batcher"] = _batcher(document["batcher"], warnings)
    warnings += _misspelt(document)
    return ModelConfig(raw=document, **cast("dict[str, Any]", values)), warnings


def load_document(text: str, file: str) -> dict[str, Any]:
    """A YAML mapping of plain data, empty for an empty text. Raises InvalidModel, which names ``file``."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - it is a safe one
    except yaml.YAMLError as error:
        raise InvalidModel(f"{file}: line {_line(error, text)}: {_problem(error)}") from None
    except (ValueError, OverflowError, RecursionError, KeyError, AttributeError) as error:
        # PyYAML raises these, without a line, for invalid dates, huge numbers and deep nesting.
        reason = str(error) or type(error).__name__
        raise InvalidModel(f"{file}: cannot be read: {excerpt(reason)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidModel(f"{file}: line 1: a mapping (key: value lines) is needed")
    if _is_too_large(document):
        raise InvalidModel(f"{file}: {_TOO_LARGE}")
    return document


# libyaml parses, which takes a quarter of the time. It does not compose: nothing could count its nodes, and
# deep nesting would overflow its stack.
_BASES: tuple[Any, ...] = (Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)


class _Loader(*_BASES):  # type: ignore[misc]  # mypy knows no such bases
    """Refuses too large documents while reading them."""

    _nodes = 0

    def __init__(self, text: str) -> None:
        Composer.__init__(self)
        _BASES[-1].__init__(self, text)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._count(1, self.peek_event())
        composed: yaml.Node | None = super().compose_node(parent, index)
        return composed

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Called for each mapping, and each time a merge key (`<<`) refers to it.
        super().flatten_mapping(node)
        self._count(len(node.value), node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # The time for a number such as 1:30:00 grows with the square of its length.
        if len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value)} characters")
        return int(super().construct_yaml_int(node))

    def _count(self, more: int, where: Any) -> None:
        self._nodes += more
        if self._nodes > 3 * _LARGEST_DOCUMENT:
            raise yaml.MarkedYAMLError(problem=_TOO_LARGE, problem_mark=where.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _line(error: yaml.YAMLError, text: str) -> int:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        # libyaml ends a last line that has no line break.
        return min(int(mark.line), text.count("\n")) + 1
    return text.count("\n", 0, getattr(error, "position", 0)) + 1


def _problem(error: yaml.YAMLError) -> str:
    problem = " ".join(
        str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).split()
    )
    if isinstance(error, yaml.constructor.ConstructorError) and "tag" in problem:
        return f"{problem}: only plain values are allowed, nothing that Python would have to build"
    return problem


def _is_too_large(document: object) -> bool:
    """Aliases can expand a small text to an enormous or infinite document."""
    stack = [document]
    for _ in range(_LARGEST_DOCUMENT):
        if not stack:
            return False
        node = stack.pop()
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, (list, tuple, set, frozenset)):
            stack.extend(node)
    return True


def _torchrun(block: Mapping[str, object], warnings: list[str]) -> Torchrun:
    for key in block:
        if key not in TORCHRUN_KEYS:
            near = nearest(str(key), TORCHRUN_KEYS)
            hint = f"; did you mean {near}?" if near else " and is ignored"
            warnings.append(f"model-config.yaml: torchrun.{excerpt(key)} is not a known setting{hint}")
    for key, only in (("nnodes", ("1", "1:1")), ("node-rank", ("0",))):
        if str(block.get(key, only[0])) not in only:
            raise InvalidModel(
                f"model-config.yaml: torchrun.{key}={excerpt(block[key])}: only {only[0]} is possible, "
                "a worker runs on one machine"
            )
    processes = _count(block, "nproc-per-node")
    if processes is not None and processes > MAX_PROCESSES:
        raise InvalidModel(
            f"model-config.yaml: torchrun.nproc-per-node={processes}: at most {MAX_PROCESSES} is possible"
        )
    return Torchrun(1 if processes is None else processes, _count(block, "OMP_NUMBER_THREADS"))


def _count(block: Mapping[str, object], key: str) -> int | None:
    if block.get(key) is None:
        return None
    try:
        return cast("int", whole(1).read(block[key]))
    except ValueError as error:
        raise InvalidModel(f"model-config.yaml: torchrun.{key}={excerpt(block[key])}: {error}") from None


_BATCHER_FIELDS = {
    "maxBatchSize": "max_batch_size",
    "max_batch_size": "max_batch_size",
    "maxLatency": "max_latency",
    "max_latency": "max_latency",
    "timeout": "timeout",
}


def _batcher(block: object, warnings: list[str]) -> Batcher:
    if block is None:
        return Batcher()
    if not isinstance(block, dict):
        raise InvalidModel(
            f"model-config.yaml: batcher={excerpt(block)}: a mapping of maxBatchSize, maxLatency and "
            "timeout is needed"
        )
    values: dict[str, int] = {}
    for key, value in block.items():
        name = _BATCHER_FIELDS.get(key)
        if name is None:
            warnings.append(
                f"model-config.yaml: batcher.{excerpt(key)} is not a known setting and is ignored"
            )
        elif name in values:
            raise InvalidModel(f"model-config.yaml: batcher.{key} is given in two spellings")
        elif value is not None:
            values[name] = _positive(key, value)
    return Batcher(**values, fields_set=frozenset(values))


def _positive(key: str, value: object) -> int:
    number = value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 19:
        number = int(value)
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LARGEST:
        return number
    raise InvalidModel(
        f"model-config.yaml: batcher.{key}={excerpt(value)}: a whole number from 1 to {LARGEST} is needed"
    )


def _misspelt(document: Mapping[str, object]) -> list[str]:
    """Warnings for unknown keys that are very similar to known ones; any others are the author's own."""
    unknown = [key for key in document if isinstance(key, str) and key not in KNOWN and len(key) <= _LONGEST]
    return [
        f"model-config.yaml: {key} is not a setting of the server; did you mean {near}?"
        for key in unknown[:_LOOKED_AT]
        if (near := nearest(key, KNOWN))
    ]


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that is very similar, ignoring case, ``_`` and ``-``."""
    plain = {_plain(name): name for name in sorted(known)}
    result = difflib.get_close_matches(_plain(key), plain, n=1, cutoff=_LIKENESS)
    return plain[result[0]] if result else None


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
