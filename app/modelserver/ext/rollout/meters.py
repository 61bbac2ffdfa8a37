"""Metrics of the traffic between versions, set when metrics are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.metrics import ServerMetrics

if TYPE_CHECKING:
    from modelserver.ext.rollout.traffic import ModelTraffic

_VERSION = ("model_name", "model_version")


class Meters:
    """Adds the metrics of a server's models.

    Args:
        metrics: of the server.
        traffics: the traffic of each model that has any.
    """

    def __init__(self, metrics: ServerMetrics, traffics: Callable[[], Iterable[ModelTraffic]]) -> None:
        self._traffics = traffics
        counter, gauge = metrics.counter, metrics.gauge
        self._families = {
            "weight": gauge(
                "modelserver_traffic_weight", "Percent of the requests that a version gets.", _VERSION
            ),
            "requests": counter(
                "modelserver_traffic_requests_total", "Requests sent to it by its weight.", _VERSION
            ),
            "copies": counter(
                "modelserver_shadow_copies_total", "Copies for a shadow.", (*_VERSION, "outcome")
            ),
            "decisions": counter(
                "modelserver_promotion_steps_total",
                "Steps of its weight by itself.",
                (*_VERSION, "direction", "reason"),
            ),
        }
        self._series: set[tuple[str, ...]] = set()
        metrics.on_render(self._render)

    def _render(self) -> None:
        before, self._series = self._series, set()
        for traffic in self._traffics():
            for version, weight in traffic.effective.items():
                self._set("weight", weight, traffic.name, version)
            for version, requests in traffic.requests.items():
                self._set("requests", requests.value, traffic.name, version)
            for version, shadow in traffic.shadows.items():
                for outcome, copies in shadow.counts.outcomes.items():
                    self._set("copies", copies, traffic.name, version, outcome)
            if (promotion := traffic.promotion) is not None:
                for cause, steps in promotion.decisions.items():
                    direction = "on" if cause == "kept" else "back"
                    self._set("decisions", steps, traffic.name, promotion.version, direction, cause)
        for family, *labels in before - self._series:
            self._families[family].remove(*labels)

    def _set(self, family: str, value: float, *labels: str) -> None:
        self._families[family].labels(*labels).set(value)
        self._series.add((family, *labels))
