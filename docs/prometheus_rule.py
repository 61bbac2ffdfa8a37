"""Prints deploy/prometheus/operator/prometheusrule.yaml: deploy/prometheus/rules.yml as a resource.

python -m docs.prometheus_rule > deploy/prometheus/operator/prometheusrule.yaml
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

_RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "rules.yml"


def document() -> str:
    """The YAML of the resource."""
    _, groups = _RULES.read_text(encoding="utf-8").split("groups:\n")
    return f"{_HEAD}  groups:\n{indent(groups, '  ')}"


_HEAD = """\
# Made from deploy/prometheus/rules.yml by `python -m docs.prometheus_rule`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: modelserver
  labels: {app.kubernetes.io/name: modelserver}
spec:
"""


if __name__ == "__main__":
    print(document(), end="")
