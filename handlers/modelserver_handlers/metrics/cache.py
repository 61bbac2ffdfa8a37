"""The object at ``context.metrics``: what a handler counts and times (reference 13.6)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from modelserver_handlers.metrics.caching import CachingMetric
from modelserver_handlers.metrics.emission import Emission, Sink, emit, type_of
from modelserver_handlers.metrics.errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCacheTypeError,
)
from modelserver_handlers.metrics.measures import Measurement, Measures
from modelserver_handlers.metrics.values import MetricTypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)


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
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type).sent_to(self._sink)
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

    def _add(self, measurement: Measurement) -> None:
        name, value, unit, kind, dimensions, idx, level = measurement
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
            metric = CachingMetric(name, unit, dimension_names, known).sent_to(self._sink)
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
