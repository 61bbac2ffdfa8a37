"""What the metrics cache raises for a file that is not YAML; apart, as few workers read one."""

from __future__ import annotations

import yaml


class MetricsCachePyYamlError(yaml.YAMLError):
    """A file that is not YAML."""
