"""The metrics listed in a ``metrics.yaml`` (reference 15.4).

    dimensions: [...]        anchors only
    ts_metrics:      {counter: [..], gauge: [..], histogram: [..]}
    model_metrics:   {counter: [..], gauge: [..], histogram: [..]}

Each item is ``{name: .., unit: .., dimensions: [..]}``. An invalid file aborts startup; TorchServe continues
without metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelserver.engine.telemetry.prometheus import check_names
from modelserver.errors import ConfigError

KINDS = ("counter", "gauge", "histogram")
HOSTNAME = "Hostname"
# The parts of a place such as ts_metrics.gauge[0].unit.
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One listed metric; ``kind`` is counter, gauge or histogram, ``dimensions`` are its label names."""

    name: str
    kind: str
    unit: str
    dimensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The listed metrics by name: the server's, and those of handlers with ``Hostname`` added."""

    server: Mapping[str, MetricSpec] = field(default_factory=dict)
    model: Mapping[str, MetricSpec] = field(default_factory=dict)


def load_metrics_config(path: Path) -> MetricsConfig:
    """Reads a file. Raises ConfigError with one line that locates the error."""
    try:
        return parse_metrics_config(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problem = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"Invalid configuration: metrics_config={path}: {problem}") from None
    except ConfigError as error:
        raise ConfigError(f"Invalid configuration: metrics_config={path}: {error}") from None


def parse_metrics_config(text: str) -> MetricsConfig:
    """The metrics of a file's text. Raises ConfigError with line and place (F60: no YAML tags)."""
    import yaml  # noqa: PLC0415 - servers without such a file need none

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    try:
        return _listed(document)
    except ConfigError as error:
        raise ConfigError(f"line {_line_of(text, str(error).partition(': ')[0])}: {error}") from None


def _listed(document: object) -> MetricsConfig:
    sections = _mapping(document, "the file")
    server = _section(sections.get("ts_metrics"), "ts_metrics")
    model = _section(sections.get("model_metrics"), "model_metrics")
    return MetricsConfig(server, {name: _with_host(spec) for name, spec in model.items()})


def _line_of(text: str, place: str) -> int:
    """The line of the place, or of its innermost existing parent."""
    import yaml  # noqa: PLC0415 - as above

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 0
    for name, number in _STEP.findall(place):
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == name), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line, entry[1]
        elif isinstance(node, yaml.SequenceNode) and number and int(number) < len(node.value):
            node = node.value[int(number)]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _section(value: object, place: str) -> dict[str, MetricSpec]:
    specs: dict[str, MetricSpec] = {}
    for kind, items in _mapping(value, place).items():
        if kind not in KINDS:
            raise ConfigError(f"{place}.{kind}: one of {', '.join(KINDS)} is needed")
        for number, item in enumerate(_list(items, f"{place}.{kind}")):
            spec = _spec(item, kind, f"{place}.{kind}[{number}]")
            if spec.name in specs:
                raise ConfigError(f"{place}.{kind}[{number}]: {spec.name} is listed twice")
            specs[spec.name] = spec
    return specs


def _spec(item: object, kind: str, place: str) -> MetricSpec:
    values = _mapping(item, place)
    name, unit = (_text(values.get(key), f"{place}.{key}") for key in ("name", "unit"))
    dimensions = _list(values.get("dimensions"), f"{place}.dimensions")
    named = tuple(_text(dimension, f"{place}.dimensions") for dimension in dimensions)
    try:
        check_names(name, named)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    return MetricSpec(name, kind, unit, named)


def _with_host(spec: MetricSpec) -> MetricSpec:
    if HOSTNAME in spec.dimensions:
        return spec
    return MetricSpec(spec.name, spec.kind, spec.unit, (*spec.dimensions, HOSTNAME))


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    raise ConfigError(f"{place}: a mapping is needed")


def _list(value: object, place: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise ConfigError(f"{place}: a list is needed")


def _text(value: object, place: str) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ConfigError(f"{place}: text is needed")
