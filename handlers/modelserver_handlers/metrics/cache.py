"""The object at ``context.metrics``: what a handler counts and times (reference 13.6).

In a worker the values go to the server with the batch's answers. Elsewhere (a test of a handler) they are
logged as the lines that TorchServe's workers print.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias

logger = logging.getLogger(__name__)


class MetricsCacheTypeError(TypeError):
    """An argument of the wrong type."""


class MetricsCacheValueError(ValueError):
    """An argument with a value that is not allowed."""


class MetricsCacheKeyError(KeyError):
    """A metric, or a section of a file, that does not exist."""


class MetricsCacheIOError(OSError):
    """A file that cannot be read."""


class GeneralMetricsCacheError(Exception):
    """Anything else."""


class MetricTypes(Enum):
    """How values of a metric are combined."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Dimension:
    """A label of a metric: ``str()`` of it is ``name:value``."""

    def __init__(self, name: Any, value: Any) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, Any]:
        """The mapping that TorchServe writes as JSON."""
        return {"Name": self.name, "Value": self.value}


class Units:
    """TorchServe's long names of units, by the short ones that handlers use."""

    units: ClassVar[dict[str | None, str]] = {
        "ms": "Milliseconds",
        "s": "Seconds",
        "percent": "Percent",
        "count": "Count",
        "MB": "Megabytes",
        "GB": "Gigabytes",
        "kB": "Kilobytes",
        "B": "Bytes",
        "": "unit",
        None: "unit",
    }


METRIC_UNIT = Units()
TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")


@dataclass(frozen=True, slots=True)
class Emission:
    """One value; ``kind`` is counter, gauge or histogram. Names and values of dimensions may be anything."""

    name: Any
    value: Any
    unit: Any
    kind: str
    dimensions: Sequence[tuple[Any, Any]] = ()
    request_id: str = ""

    @property
    def line(self) -> str:
        """The line that TorchServe's workers print (reference 15.4)."""
        dimensions = ",".join(f"{name}:{value}" for name, value in self.dimensions)
        request = f",{self.request_id}" if self.request_id else ""
        return (
            f"[METRICS]{self.name}.{long_unit(self.unit)}:{self.value}|#{dimensions}|#type:{self.kind.upper()}"
            f"|#hostname:{socket.gethostname()},{int(time.time())}{request}"
        )


Sink: TypeAlias = Callable[[Emission], None]


def long_unit(unit: Any) -> Any:
    """TorchServe's long name of a unit; unknown ones are unchanged."""
    return Units.units.get(unit, unit) if unit is None or isinstance(unit, str) else unit


def kind_of(metric_type: Any) -> str:
    """The kind for a member of any enumeration, or for its value."""
    return str(getattr(metric_type, "value", metric_type)).lower()


def type_of(kind: str) -> MetricTypes | None:
    """The member for a kind, None if there is none."""
    return next((known for known in MetricTypes if known.value == kind), None)


def log_emission(emission: Emission) -> None:
    """The sink outside of workers."""
    logger.info("%s", emission.line)


_sink: Sink = log_emission


def send_emissions_to(sink: Sink) -> None:
    """Send values of metrics without a cache to this sink from now on."""
    global _sink  # noqa: PLW0603 - a process has one way to its server
    _sink = sink


def emit(emission: Emission) -> None:
    """Send a value to the sink."""
    _sink(emission)


class Measures(ABC):
    """``idx`` is a position in the batch, None for all; ``dimensions`` have a ``name`` and a ``value``."""

    def add_metric(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        unit: str | None,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.COUNTER,
    ) -> None:
        """Adds one value; ``metric_type`` is counter, gauge or histogram."""
        self._add(name, value, unit, kind_of(metric_type), dimensions, idx)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Iterable[Any] | None = ()
    ) -> None:
        """Increments a counter by ``value``."""
        self._add(name, value, "count", "counter", dimensions, idx)

    def add_time(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a duration in ``ms`` or ``s``; ValueError for other units."""
        if unit not in TIME_UNITS:
            raise MetricsCacheValueError("the unit for a timed metric should be one of ['ms', 's']")
        self._add(name, value, unit, kind_of(metric_type), dimensions, idx)

    def add_size(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a size in ``MB``, ``kB``, ``GB`` or ``B``; ValueError for other units."""
        if unit not in SIZE_UNITS:
            raise MetricsCacheValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._add(name, value, unit, kind_of(metric_type), dimensions, idx)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a share in percent."""
        self._add(name, value, "percent", kind_of(metric_type), dimensions, idx)

    def add_error(self, name: str, value: Any, dimensions: Iterable[Any] | None = ()) -> None:
        """Increments an error counter."""
        self._add(name, value, "", "counter", dimensions, None, "Error")

    @abstractmethod
    def _add(  # noqa: PLR0917 - all that there is to say of a value
        self, name: str, value: Any, unit: Any, kind: str, dimensions: Any, idx: Any, level: str = "Model"
    ) -> None:
        """Add one value."""


class MetricAbstract(ABC):
    """The interface of declared metrics."""

    def __init__(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        _check_type(metric_type, MetricTypes, "`metric_type` must be a MetricTypes enum")
        self.metric_name = metric_name
        self.unit = long_unit(unit)
        self.dimension_names = list(dimension_names or ())
        self.metric_type = metric_type
        self._short_unit = unit
        self._sink: Sink | None = None

    @abstractmethod
    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Report a value."""


class CachingMetric(MetricAbstract):
    """A metric with its unit and the names of its dimensions.

    A value that cannot be reported (dimensions that do not match, a counter below 0) is an error in the log;
    nothing is raised, so that measuring never fails a request.
    """

    def with_sink(self, sink: Sink | None) -> CachingMetric:
        """Set the sink for its values (None: that of the process); returns the metric."""
        self._sink = sink
        return self

    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Report a value for these dimensions, one per name."""
        problem = self._problem(value, dimension_values)
        if problem:
            values = ",".join(str(text) for text in dimension_values or ())
            logger.error(
                "[METRICS]Failed to update metric with name:%s and dimensions: %s with value: %s: %s",
                self.metric_name,
                values,
                value,
                problem,
            )
            return
        dimensions = tuple(zip(self.dimension_names, dimension_values, strict=True))
        emission = Emission(
            self.metric_name, value, self._short_unit, self.metric_type.value, dimensions, request_id
        )
        (self._sink or emit)(emission)

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Any] = ()) -> None:
        """Report a value for Dimension objects, whose names replace those declared (the old way)."""
        names = [dimension.name for dimension in dimensions]
        if self.dimension_names not in ([], names):
            logger.warning("Overriding existing dimensions")
        self.dimension_names = names
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def _problem(self, value: Any, dimension_values: Sequence[Any] | None) -> str:
        if dimension_values is None or len(dimension_values) != len(self.dimension_names):
            return (
                f"Dimension values: {dimension_values} should correspond to Dimension names:"
                f" {self.dimension_names}"
            )
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            return "Counter metric update value cannot be negative"
        return ""


class MetricsCache(Measures):
    """Counters, times and sizes of a model, reported as they are added.

    ``ModelName`` and ``Level`` are added to the dimensions. A value is tagged with the id of request ``idx``,
    or with those of all requests. Each thread tags with the batch it began, other threads with the latest. A
    counter's value below 0 is logged as an error.

    Unlike in TorchServe, a name may be added with different dimensions (where all but the first are dropped),
    ``metric_type`` may be a string, and an error's series names its model too.
    """

    def __init__(self, model_name: str = "", sink: Sink | None = None) -> None:
        self.model_name = model_name
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.store: list[Any] = []
        self._sink = sink
        self._latest: dict[int, str] = {}
        self._of_thread = threading.local()

    @property
    def request_ids(self) -> dict[int, str]:
        """Position in the current batch to request id."""
        ids: dict[int, str] = getattr(self._of_thread, "ids", self._latest)
        return ids

    @request_ids.setter
    def request_ids(self, request_ids: dict[int, str]) -> None:
        self._of_thread.ids = self._latest = request_ids

    def set_request_ids(self, request_ids: dict[int, str] | None) -> None:
        """Set the requests of the next batch."""
        self.request_ids = request_ids or {}

    # Declared first

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Declares a metric, replacing one of that name and type; no dimensions are added."""
        _check_type(metric_name, str, "`metric_name` must be a str")
        _check_type(unit, (str, type(None)), "`unit` must be a str")
        if any(not isinstance(name, str) for name in dimension_names or ()):
            raise MetricsCacheTypeError("`dimension_names` must be a list of str")
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type).with_sink(self._sink)
        self.cache.setdefault(metric_type, {})[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """A metric that was declared or added before; MetricsCacheKeyError if there is none."""
        _check_type(metric_type, MetricTypes, "`metric_type` must be a MetricTypes enum")
        try:
            return self.cache[metric_type][metric_name]
        except KeyError:
            raise MetricsCacheKeyError(
                f"Metric of type '{metric_type}' and name '{metric_name}' doesn't exist"
            ) from None

    def cache_keys(self) -> list[MetricTypes]:
        """The types of the known metrics."""
        return list(self.cache)

    def initialize_cache(self) -> None:
        """Declares the metrics that are known in advance: here, none."""

    def _add(  # noqa: PLR0917 - all that there is to say of a value
        self, name: str, value: Any, unit: Any, kind: str, dimensions: Any, idx: Any, level: str = "Model"
    ) -> None:
        if kind == "counter" and value < 0:
            logger.error("The counter %s cannot be increased by %s: it is below 0", name, value)
            return
        named = [(dimension.name, dimension.value) for dimension in dimensions or ()]
        present = {key for key, _ in named}
        defaults = (("ModelName", self.model_name), ("Level", level))
        named += [(key, text) for key, text in defaults if key not in present]
        self._remember(name, unit, kind, [key for key, _ in named])
        ids = self.request_ids
        request_id = ",".join(ids.values()) if idx is None else ids.get(idx, "")
        (self._sink or emit)(Emission(name, value, unit, kind, named, request_id))

    def _remember(self, name: Any, unit: str | None, kind: str, dimension_names: list[str]) -> None:
        known = type_of(kind)
        if known is not None and name not in self.cache.setdefault(known, {}):
            metric = CachingMetric(name, unit, dimension_names, known).with_sink(self._sink)
            self.cache[known][name] = metric


class MetricsCacheYamlImpl(MetricsCache):
    """A cache that knows the ``model_metrics`` of a metrics.yaml (reference 15.4).

    Raises MetricsCacheIOError for a file that cannot be read, MetricsCachePyYamlError if it is not YAML.
    """

    def __init__(self, config_file_path: str) -> None:
        super().__init__()
        self.config_file_path = config_file_path
        self._document = _read(config_file_path)

    def initialize_cache(self) -> None:
        """Declares what the file lists; MetricsCacheKeyError without a section ``model_metrics``."""
        section = self._document.get("model_metrics")
        if section is None:
            raise MetricsCacheKeyError("'model_metrics' key not found in yaml file")
        for kind, metrics in section.items():
            for metric in metrics or ():
                self._declare(kind, metric)

    def _declare(self, kind: str, metric: Mapping[str, Any]) -> None:
        metric_type = type_of(kind)
        if metric_type is None:
            raise MetricsCacheKeyError(f"model_metrics has {kind!r}, not counter, gauge or histogram")
        try:
            names = metric["dimensions"]
            self.add_metric_to_cache(metric["name"], metric["unit"], names, metric_type)
        except KeyError as error:
            raise MetricsCacheKeyError(f"a metric of model_metrics lacks its {error}: {metric}") from None


def _read(path: Any) -> Mapping[str, Any]:
    # Imported here, as few workers read such a file.
    import yaml  # noqa: PLC0415

    from modelserver_handlers.metrics.yaml_errors import MetricsCachePyYamlError  # noqa: PLC0415

    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except TypeError as error:
        raise MetricsCacheTypeError(f"Error loading {path} file: {error}") from error
    except OSError as error:
        raise MetricsCacheIOError(f"Error reading file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise MetricsCachePyYamlError(f"Error parsing file {path}: {error}") from error
    return document if isinstance(document, dict) else {}


def _check_type(value: Any, expected: type | tuple[type, ...], message: str) -> None:
    if not isinstance(value, expected):
        raise MetricsCacheTypeError(message)
