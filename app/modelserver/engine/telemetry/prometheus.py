"""Metrics and their Prometheus text, format 0.0.4 (reference 15.2).

The usual client library is not used because TorchServe's counters have exactly their configured names (no
`_total`, no `_created`), and an update here is a single addition without locks or look-ups. Everything
belongs to the event loop's thread.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES = 10_000
PIECE = 1000  # lines, which take about two milliseconds
_SECONDS_BOUNDS = "0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60"
SECONDS_BOUNDS = tuple(map(float, _SECONDS_BOUNDS.split()))
DEFAULT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Value:
    """One series of a counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value


class Distribution:
    """One series of a histogram: how many observations fell at or below each bound, and their sum.

    Observations of each request are only added to ``new``, and counted together: now and then by
    :meth:`count_new`, and when they are read. That takes a quarter of the time.
    """

    __slots__ = ("_counts", "_total", "bounds", "new")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.new: list[float] = []
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._total += value

    def count_new(self) -> None:
        """Counts the new observations, and forgets each."""
        new, counted = self.new, 0
        if not new:
            return
        self._total = sum(new, self._total)
        new.sort()
        for index, bound in enumerate(self.bounds):
            below = bisect_right(new, bound, counted)
            self._counts[index] += below - counted
            counted = below
        self._counts[-1] += len(new) - counted
        new.clear()

    @property
    def counts(self) -> list[int]:
        """How many fell at or below each bound and above the one before; the last: above all."""
        self.count_new()
        return self._counts

    @property
    def total(self) -> float:
        """The sum of all."""
        self.count_new()
        return self._total


Child = TypeVar("Child", Value, Distribution)


class Family(Generic[Child]):
    """A metric; its children are its series, one per combination of label values.

    At most ``max_series`` children are kept; further ones work but are never shown (F69).
    Raises ValueError for a name or label that Prometheus would refuse.
    """

    kind: ClassVar[str]
    max_series = MAX_SERIES
    bounds: tuple[float, ...] = ()

    def __init__(self, name: str, help_text: str, label_names: Sequence[str] = ()) -> None:
        check_names(name, label_names)
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(label_names)
        self._children: dict[tuple[str, ...], Child] = {}

    @property
    def sample_names(self) -> tuple[str, ...]:
        return (self.name,)

    def labels(self, *values: str) -> Child:
        """The child of these label values, created on first use; keep it and update it directly."""
        child = self._children.get(values)
        if child is not None:
            return child
        if len(values) != len(self.label_names):
            raise ValueError(f"{self.name} has labels {self.label_names}, got {len(values)} values")
        child = self._new_child(values)
        if len(self._children) < self.max_series:
            self._children[values] = child
        return child

    def remove(self, *values: str) -> Child | None:
        """Shows the child of these label values no more; returns it."""
        return self._children.pop(values, None)

    def restore(self, values: tuple[str, ...], child: Any) -> None:
        """Shows a removed child again."""
        if len(self._children) < self.max_series:
            self._children[values] = child

    @property
    def series(self) -> list[tuple[tuple[str, ...], Child]]:
        """The values of the labels, and what they have, of each series that is shown."""
        return list(self._children.items())

    def readings(self) -> list[tuple[tuple[str, ...], float | tuple[list[int], float]]]:
        """The values of the labels and the reading of each series that is shown."""
        return [(values, self.reading(child)) for values, child in self.series]

    @property
    def series_count(self) -> int:
        return len(self._children)

    def samples(self) -> Iterator[Iterator[tuple[str, str, float]]]:
        """(sample name, labels as text without braces, value) of each child that there is now."""
        for values, child in self.series:
            yield self._samples_of(child, _labels_text(self.label_names, values))

    def reading(self, child: Child) -> float | tuple[list[int], float]:
        """A number, or a histogram's counts by bucket and the sum of all."""
        raise NotImplementedError

    def _new_child(self, values: tuple[str, ...]) -> Child:
        raise NotImplementedError

    def _samples_of(self, child: Child, labels: str) -> Iterator[tuple[str, str, float]]:
        raise NotImplementedError


class ValueFamily(Family[Value]):
    """A metric whose series are numbers."""

    def reading(self, child: Value) -> float:
        return float(child.value)

    def _new_child(self, values: tuple[str, ...]) -> Value:
        return Value()

    def _samples_of(self, child: Value, labels: str) -> Iterator[tuple[str, str, float]]:
        yield self.name, labels, child.value


class Counter(ValueFamily):
    """A number that only grows."""

    kind = "counter"

    def take(self, child: Value, value: float) -> None:
        """Adds a value that its source reports; one below 0 does not count."""
        child.add(max(0.0, value))


class Gauge(ValueFamily):
    """A number that goes up and down."""

    kind = "gauge"

    def take(self, child: Value, value: float) -> None:
        """Shows a value that its source reports."""
        child.set(value)


class Histogram(Family[Distribution]):
    """How observations are distributed over ``bounds`` (upper, inclusive, increasing)."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        label_names: Sequence[str] = (),
        *,
        bounds: Sequence[float] = DEFAULT_BOUNDS,
    ) -> None:
        super().__init__(name, help_text, label_names)
        if "le" in label_names:
            raise ValueError(f"{name}: a histogram cannot have a label named le")
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"{name}: bounds must increase, got {list(bounds)}")
        self.bounds = tuple(bounds)

    @property
    def sample_names(self) -> tuple[str, ...]:
        return self.name, f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum"

    def take(self, child: Distribution, value: float) -> None:
        """Observes a value that its source reports."""
        child.observe(value)

    def reading(self, child: Distribution) -> tuple[list[int], float]:
        return list(child.counts), child.total

    def _new_child(self, values: tuple[str, ...]) -> Distribution:
        return Distribution(self.bounds)

    def _samples_of(self, child: Distribution, labels: str) -> Iterator[tuple[str, str, float]]:
        before = f"{labels}," if labels else ""
        running = 0
        for bound, count in zip((*self.bounds, math.inf), child.counts, strict=True):
            running += count
            yield f"{self.name}_bucket", f'{before}le="{format_value(bound)}"', running
        yield f"{self.name}_count", labels, running
        yield f"{self.name}_sum", labels, child.total


AnyFamily = Counter | Gauge | Histogram
FAMILY_KINDS: dict[str, type[AnyFamily]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
AddedFamily = TypeVar("AddedFamily", bound=AnyFamily)


class MetricRegistry:
    """All metrics of a server. ``trailing_comma`` ends label lists as TorchServe does (reference 15.2)."""

    def __init__(self, *, trailing_comma: bool = False) -> None:
        self._families: dict[str, AnyFamily] = {}
        self._owners: dict[str, str] = {}
        self._closing = ",}" if trailing_comma else "}"

    def add(self, family: AddedFamily) -> AddedFamily:
        """Adds ``family``. Raises ValueError if one of its sample names is taken."""
        for sample in family.sample_names:
            if sample in self._owners:
                raise ValueError(f"the metric name {sample} is taken by {self._owners[sample]}")
        self._owners.update(dict.fromkeys(family.sample_names, family.name))
        self._families[family.name] = family
        return family

    def remove(self, name: str) -> None:
        family = self._families.pop(name, None)
        for sample in () if family is None else family.sample_names:
            del self._owners[sample]

    @property
    def families(self) -> list[AnyFamily]:
        return list(self._families.values())

    def get(self, name: str) -> AnyFamily | None:
        return self._families.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._owners

    def pieces(self, names: Collection[str] = ()) -> Iterator[bytes]:
        """Yields the Prometheus text of everything, or of the samples or metrics called ``names``.

        It is in pieces of about ``PIECE`` lines, between which metrics may change.

        Each series is shown as it is at one moment, and each metric has the series of the moment at which it
        begins.
        """
        selected = frozenset(names)
        lines: list[str] = []
        for family in self.families:
            for some in self._family_lines(family, selected):
                lines += some
                if len(lines) >= PIECE:
                    yield _encoded(lines)
                    lines = []
        if lines:
            yield _encoded(lines)

    def _family_lines(self, family: AnyFamily, selected: frozenset[str]) -> Iterator[list[str]]:
        everything = not selected or family.name in selected
        if selected and (family.series_count == 0 or not (everything or selected & {*family.sample_names})):
            return
        help_text = family.help_text.translate(_HELP_ESCAPES)
        yield [f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.kind}\n"]
        for samples in family.samples():
            yield [
                f"{name}{{{labels}{self._closing} {format_value(value)}\n"
                if labels
                else f"{name} {format_value(value)}\n"
                for name, labels, value in samples
                if everything or name in selected
            ]


def _encoded(lines: list[str]) -> bytes:
    return "".join(lines).encode(errors="replace")


def format_value(value: float) -> str:
    """A number in the text format, with a decimal point: `8.0`, `+Inf`."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    text = repr(float(value))
    if "." in text:
        return text
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}"


def metric_name(text: str) -> str:
    """The text changed to a name that Prometheus accepts."""
    name = re.sub(r"[^a-zA-Z0-9_:]", "_", text)
    return name if _METRIC_NAME.match(name) else f"_{name}"


def label_name(text: str) -> str:
    """The text changed to a label name that Prometheus accepts; two leading underscores are reserved."""
    name = re.sub(r"^_{2,}", "_", re.sub(r"[^a-zA-Z0-9_]", "_", text))
    return name if _LABEL_NAME.match(name) else f"_{name}"


def check_names(name: str, label_names: Sequence[str]) -> None:
    """Raises ValueError for a name or label that Prometheus would refuse."""
    if not _METRIC_NAME.fullmatch(name):
        raise ValueError(f"not a metric name: {name!r}")
    for label in label_names:
        if not _LABEL_NAME.fullmatch(label) or label.startswith("__"):
            raise ValueError(f"{name}: not a label name: {label!r}")
    if len(set(label_names)) != len(label_names):
        raise ValueError(f"{name}: a label is named twice in {list(label_names)}")


def _labels_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{n}="{v.translate(_LABEL_ESCAPES)}"' for n, v in zip(names, values, strict=True))
