"""The metrics that handlers emit (reference 13.6, 15.4), with limits on names and series per model.

Unlike in TorchServe, all are accepted without a ``metrics_config``; with one, those listed, or all with
``model_metrics_auto_detect``. Listed metrics have the file's type, unit and label names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from modelserver.engine.telemetry.metrics_config import HOSTNAME, MetricsConfig, MetricSpec
from modelserver.engine.telemetry.prometheus import (
    FAMILY_KINDS,
    AnyFamily,
    MetricRegistry,
    label_name,
    metric_name,
)

MAX_NAMES_PER_MODEL = 200
MAX_SERIES_PER_MODEL = 1000
MAX_DIMENSIONS = 16
MAX_TEXT = 256
RESERVED_PREFIX = "modelserver_"
KNOWN = ("HandlerTime", "PredictionTime")

Dimensions = Sequence[tuple[str, str]]
_KNOWN = {name: MetricSpec(name, "gauge", "ms", ("ModelName", "Level", HOSTNAME)) for name in KNOWN}
_Key = tuple[str, str, tuple[tuple[str, str], ...]]
# Takes a value of one series.
_Take = Callable[[float], None]

_log = logging.getLogger(__name__)


def torchserve_help(kind: str, unit: str) -> str:
    """The HELP text of reference 15.2."""
    return f"Torchserve prometheus {kind} metric with unit: {unit}"


class HandlerFamilies:
    """The metrics named by handlers so far; each is kept as long as a model uses it.

    Those in ``config`` always exist; ``accepts_all``: others are accepted too. Without ``config`` all are
    accepted, unless ``known_only``: then only those of TorchServe's own list.
    """

    def __init__(
        self,
        registry: MetricRegistry,
        config: MetricsConfig | None = None,
        *,
        accepts_all: bool = True,
        known_only: bool = False,
    ) -> None:
        self._registry = registry
        self._families: dict[str, AnyFamily] = {}
        always = _KNOWN if config is None else dict(config.model)
        open_to_all = config is None and not known_only
        self._listed: dict[str, MetricSpec] = {} if open_to_all else always
        self._accepts_all = accepts_all or open_to_all
        self._warned: set[str] = set()
        for spec in always.values():
            self._make(spec.name, spec.unit, spec.kind, spec.dimensions)
        self.known = frozenset(self._families)

    def as_listed(
        self, name: str, unit: str, kind: str, dimensions: Dimensions
    ) -> tuple[str, str, Dimensions] | None:
        """The effective unit, kind and dimensions; None for a metric to drop."""
        spec = self._listed.get(name)
        if spec is None:
            return (unit, kind.lower(), dimensions) if self._accepts_all else None
        names = [label for label in spec.dimensions if label != HOSTNAME]
        if len(names) != len(dimensions):
            if name not in self._warned:
                self._warned.add(name)
                _log.error(
                    "The handler metric %s has %d dimensions, metrics_config lists %d; dropped",
                    name,
                    len(dimensions),
                    len(names),
                )
            return None
        values = (value for _, value in dimensions)
        return spec.unit, spec.kind, list(zip(names, values, strict=True))

    def get(self, name: str, unit: str, kind: str, label_names: Sequence[str]) -> AnyFamily | None:
        """The family of ``name``, created on first use; None if the name is taken."""
        family = self._families.get(name)
        if family is None and name not in self._registry and not name.startswith(RESERVED_PREFIX):
            family = self._make(name, unit, kind, label_names)
        return family if family is not None and family.kind == kind else None

    def drop_unused(self, name: str) -> None:
        """Removes ``name`` if no model has a series of it."""
        family = self._families.get(name)
        if family is not None and family.series_count == 0 and name not in self.known:
            del self._families[name]
            self._registry.remove(name)

    def _make(self, name: str, unit: str, kind: str, label_names: Sequence[str]) -> AnyFamily | None:
        try:
            family = FAMILY_KINDS[kind](name, torchserve_help(kind, unit), label_names)
            self._registry.add(family)
        except (KeyError, ValueError):
            return None
        self._families[name] = family
        return family


class ModelHandlerMetrics:
    """The metrics emitted by the handlers of one model, all versions."""

    def __init__(self, families: HandlerFamilies, model_name: str, hostname: str) -> None:
        self.families = families
        self._model_name = model_name
        self._hostname = hostname
        self._children: dict[_Key, _Take | None] = {}
        self._owned: list[tuple[AnyFamily, tuple[str, ...]]] = []
        self._names: set[str] = set()
        self._warned: set[str] = set()
        self._closed = False

    def record(self, name: str, value: float, unit: str, kind: str, dimensions: Dimensions) -> None:
        """Records a value: counters add it if it is not negative, gauges set it, histograms observe it.

        ``kind`` is counter, gauge or histogram, in any case. Metrics over the limits are dropped with one
        warning.
        """
        key = (name, kind, tuple(dimensions))
        entry = self._children[key] if key in self._children else self._admit(key, unit)
        if entry is not None and math.isfinite(value):
            entry(value)

    def close(self) -> None:
        """Removes every series of this model; later values are ignored."""
        self._closed = True
        for family, values in self._owned:
            family.remove(*values)
            self.families.drop_unused(family.name)
        self._owned.clear()
        self._children.clear()

    def _admit(self, key: _Key, unit: str) -> _Take | None:
        if self._closed:
            return None
        name, emitted_kind, emitted = key
        if len(self._children) >= MAX_SERIES_PER_MODEL:
            self._warn("series", f"more than {MAX_SERIES_PER_MODEL} series of handler metrics")
            return None
        listed = self.families.as_listed(name, unit, emitted_kind, emitted)
        if listed is None:
            self._children[key] = None
            return None
        unit, kind, dimensions = listed
        if name not in self.families.known and name not in self._names:
            if len(self._names) >= MAX_NAMES_PER_MODEL:
                self._warn("names", f"more than {MAX_NAMES_PER_MODEL} names of handler metrics")
                return None
            self._names.add(name)
        entry = self._series_of_family(metric_name(name[:MAX_TEXT]), unit[:MAX_TEXT], kind, dimensions)
        if entry is None:
            self._warn(name, f"the name of the handler metric {name[:MAX_TEXT]!r} ({kind}) is already used")
        self._children[key] = entry
        return entry

    def _series_of_family(self, name: str, unit: str, kind: str, dimensions: Dimensions) -> _Take | None:
        labels = {label_name(key[:MAX_TEXT]): text[:MAX_TEXT] for key, text in dimensions[:MAX_DIMENSIONS]}
        labels.setdefault("Hostname", self._hostname)
        family = self.families.get(name, unit, kind, tuple(labels))
        if family is None:
            return None
        # The first value decides the labels; to Prometheus an empty label is the same as none.
        values = tuple(labels.get(label, "") for label in family.label_names)
        self._owned.append((family, values))
        take: Callable[[Any, float], None] = family.take
        return partial(take, family.labels(*values))

    def _warn(self, subject: str, problem: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            _log.warning("Model %s: %s; dropped", self._model_name, problem)
