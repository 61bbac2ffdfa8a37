"""What the metrics cache raises (reference 13.6); each class derives from a built-in error."""

from __future__ import annotations


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
