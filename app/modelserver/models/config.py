"""model-config.yaml: what the author of an archive wants of the server (reference 9; kserve 1.7 and 2.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import yaml

from modelserver.errors import InvalidModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# What fits TorchServe's own integers: more is a mistake, and would not fit a clock.
LARGEST = 2**31 - 1

BATCH_POLICIES = ("adaptive", "greedy", "window")
_DEVICE_TYPES = ("cpu", "gpu")
_PARALLEL_TYPES = ("pp", "tp", "pptp", "custom", "")
_LARGEST_DOCUMENT = 100_000  # nodes, aliases followed


@dataclass(frozen=True, slots=True)
class Batcher:
    """The ``batcher:`` block of KServe: latency in ms, timeout in s. ``given`` names the fields it sets."""

    max_batch_size: int = 32
    max_latency: int = 500
    timeout: int = 60
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The keys of the file, None where it does not set them; ``raw`` is the whole document.

    Delays and the ``_ms`` fields are in ms, timeouts in s. A ``max_batch_delay`` or ``job_queue_size`` of 0
    counts as not set where settings are ranked.
    """

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    device_type: Literal["cpu", "gpu"] | None = None
    device_ids: tuple[int, ...] | None = None
    parallel_type: str | None = None
    parallel_level: int | None = None
    torchrun: Mapping[str, object] | None = None
    max_retry_timeout: int | None = None
    client_timeout_ms: int | None = None
    job_queue_size: int | None = None
    use_job_ticket: bool | None = None
    use_venv: bool | None = None
    sequence_batching: bool | None = None
    continuous_batching: bool | None = None
    async_communication: bool | None = None
    sequence_max_idle_ms: int | None = None
    sequence_timeout_ms: int | None = None
    max_num_sequence: int | None = None
    max_sequence_job_queue_size: int | None = None
    batch_policy: Literal["adaptive", "greedy", "window"] | None = None
    split_instances: bool | None = None
    batcher: Batcher | None = None
    raw: Mapping[str, object] = field(default_factory=dict)


def parse_model_config(text: str) -> tuple[ModelConfig, list[str]]:
    """Read the file; the list holds a line for every value that was passed over or corrected.

    Raises InvalidModel when it is no YAML mapping of plain data, and for a ``batchPolicy``,
    ``splitInstances`` or ``batcher`` that cannot be meant.
    """
    document = _load(text)
    warnings: list[str] = []
    values: dict[str, object] = {}
    for key, (name, read) in _KEYS.items():
        if document.get(key) is None:
            continue
        try:
            values[name] = read(document[key])
        except _CorrectedError as error:
            values[name] = error.value
            warnings.append(f"model-config.yaml: {key}={document[key]}: {error}, {error.value} is used")
        except ValueError as error:
            warnings.append(f"model-config.yaml: {key}={_shown(document[key])} is ignored: {error}")
    if "batcher" in document:
        values["batcher"] = _batcher(document["batcher"], warnings)
    warnings += _misspelt(document)
    config = ModelConfig(
        batch_policy=_batch_policy(document.get("batchPolicy")),
        split_instances=_split_instances(document.get("splitInstances")),
        raw=document,
        **cast("dict[str, Any]", values),
    )
    return config, warnings


class _CorrectedError(Exception):
    """A value outside its range that has a nearest one inside."""

    def __init__(self, message: str, value: int) -> None:
        super().__init__(message)
        self.value = value


def _load(text: str) -> dict[str, object]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidModel(f"model-config.yaml: line {_line(error, text)}: {_problem(error)}") from None
    except (ValueError, OverflowError, RecursionError, KeyError, AttributeError) as error:
        # PyYAML lets these out of impossible dates, endless numbers and bottomless nesting, without a line.
        reason = str(error) or type(error).__name__
        raise InvalidModel(f"model-config.yaml: cannot be read: {_shown(reason)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidModel("model-config.yaml: line 1: a mapping (key: value lines) is needed")
    if _is_too_large(document):
        raise InvalidModel(f"model-config.yaml: more than {_LARGEST_DOCUMENT} values, aliases followed")
    return document


def _line(error: yaml.YAMLError, text: str) -> int:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return int(mark.line) + 1
    return text.count("\n", 0, getattr(error, "position", 0)) + 1


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    return " ".join(str(problem).split())


def _is_too_large(document: object) -> bool:
    """Aliases make a small text stand for an enormous or endless document."""
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


def _integer(minimum: int) -> Callable[[object], int]:
    """A whole number; a smaller one than ``minimum`` is an error."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST:
            return value
        bound = f"at most {LARGEST}" if isinstance(value, int) and value > LARGEST else f"at least {minimum}"
        raise ValueError(f"a whole number of {bound} is needed")

    return read


def _raised_to_one(value: object) -> int:
    """A whole number; one below 1 becomes 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number of at least 1 is needed")  # noqa: TRY004 - as for all values
    if value > LARGEST:
        raise ValueError(f"a whole number of at most {LARGEST} is needed")
    if value < 1:
        raise _CorrectedError("a whole number of at least 1 is needed", 1)
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false is needed")


def _one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise ValueError(f"one of {', '.join(filter(None, choices))} is needed")

    return read


def _device_ids(value: object) -> tuple[int, ...]:
    number = _integer(0)
    if isinstance(value, list):
        return tuple(number(item) for item in value)
    raise ValueError("a list of whole numbers is needed")


def _mapping(value: object) -> Mapping[str, object]:
    if isinstance(value, dict):
        return value
    raise ValueError("a mapping is needed")


_KEYS: dict[str, tuple[str, Callable[[object], object]]] = {
    "minWorkers": ("min_workers", _raised_to_one),
    "maxWorkers": ("max_workers", _integer(0)),
    "batchSize": ("batch_size", _raised_to_one),
    "maxBatchDelay": ("max_batch_delay", _integer(0)),
    "responseTimeout": ("response_timeout", _integer(1)),
    "startupTimeout": ("startup_timeout", _integer(1)),
    "deviceType": ("device_type", _one_of(_DEVICE_TYPES)),
    "deviceIds": ("device_ids", _device_ids),
    "parallelType": ("parallel_type", _one_of(_PARALLEL_TYPES)),
    "parallelLevel": ("parallel_level", _integer(0)),
    "torchrun": ("torchrun", _mapping),
    "maxRetryTimeoutInSec": ("max_retry_timeout", _integer(0)),
    "clientTimeoutInMills": ("client_timeout_ms", _integer(0)),
    "jobQueueSize": ("job_queue_size", _integer(0)),
    "useJobTicket": ("use_job_ticket", _boolean),
    "useVenv": ("use_venv", _boolean),
    "sequenceBatching": ("sequence_batching", _boolean),
    "continuousBatching": ("continuous_batching", _boolean),
    "asyncCommunication": ("async_communication", _boolean),
    "sequenceMaxIdleMSec": ("sequence_max_idle_ms", _integer(0)),
    "sequenceTimeoutMSec": ("sequence_timeout_ms", _integer(0)),
    "maxNumSequence": ("max_num_sequence", _raised_to_one),
    "maxSequenceJobQueueSize": ("max_sequence_job_queue_size", _raised_to_one),
}
_OWN_KEYS = ("batchPolicy", "splitInstances", "batcher")


def _batch_policy(value: object) -> Literal["adaptive", "greedy", "window"] | None:
    if value is None:
        return None
    if isinstance(value, str) and value.lower() in BATCH_POLICIES:
        return cast("Literal['adaptive', 'greedy', 'window']", value.lower())
    raise InvalidModel(
        f"model-config.yaml: batchPolicy={_shown(value)}: one of {', '.join(BATCH_POLICIES)} is needed"
    )


def _split_instances(value: object) -> bool | None:
    if value is None or value == "auto":
        return None
    if isinstance(value, bool):
        return value
    raise InvalidModel(f"model-config.yaml: splitInstances={_shown(value)}: true, false or auto is needed")


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
            f"model-config.yaml: batcher={_shown(block)}: a mapping of maxBatchSize, maxLatency and "
            "timeout is needed"
        )
    values: dict[str, int] = {}
    for key, value in block.items():
        name = _BATCHER_FIELDS.get(key)
        if name is None:
            warnings.append(f"model-config.yaml: batcher.{_shown(key)} is not a known setting and is ignored")
        elif name in values:
            raise InvalidModel(f"model-config.yaml: batcher.{key} is given twice, in two spellings")
        elif value is not None:
            values[name] = _positive(key, value)
    return Batcher(**values, given=frozenset(values))


def _positive(key: str, value: object) -> int:
    number = value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 19:
        number = int(value)
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LARGEST:
        return number
    raise InvalidModel(
        f"model-config.yaml: batcher.{key}={_shown(value)}: a whole number from 1 to {LARGEST} is needed"
    )


def _misspelt(document: Mapping[str, object]) -> list[str]:
    """Keys are the author's own except where they differ from one of ours by case or ``_`` only."""
    known = {_plain(key): key for key in (*_KEYS, *_OWN_KEYS)}
    return [
        f"model-config.yaml: {key} is not a setting of the server; did you mean {known[_plain(key)]}?"
        for key in document
        if isinstance(key, str) and _plain(key) in known and key not in known.values()
    ]


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _shown(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:79] + "…"
