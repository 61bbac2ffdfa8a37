"""Holds resources to published schemas.

Those of Kubernetes come with ``kubernetes-validate``, and are taken strictly: no field that they do not name.
Of KServe, KEDA, KubeRay and the Prometheus operator no package carries schemas that could be used here, so
the fields and types of their published models are recorded (``recorded/``; KServe's by
``record_kserve.py``). What these leave to Kubernetes, such as containers, is held to its schemas again.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from kubernetes_validate.utils import schema_contents

# The oldest version that has all that is used, and the newest that the package knows.
VERSIONS = ("1.29", kubernetes_validate.latest_version())

_RECORDED = Path(__file__).with_name("recorded")
_ROOTS = {
    ("serving.kserve.io/v1beta1", "InferenceService"): "V1beta1InferenceService",
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): "V1alpha1ServingRuntime",
    ("serving.kserve.io/v1alpha1", "ClusterServingRuntime"): "V1alpha1ClusterServingRuntime",
    ("keda.sh/v1alpha1", "ScaledObject"): "ScaledObject",
    ("http.keda.sh/v1beta1", "InterceptorRoute"): "InterceptorRoute",
    ("ray.io/v1", "RayCluster"): "RayCluster",
    ("monitoring.coreos.com/v1", "PodMonitor"): "PodMonitor",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "PrometheusRule",
}
_PLAIN = {"str": str, "int": int, "bool": bool}
_QUANTITIES = ("V1beta1MetricQuantity", "ResourceQuantity")


def problems(resource: dict[str, Any]) -> list[str]:
    """What is wrong with a resource."""
    root = _ROOTS.get((resource["apiVersion"], resource["kind"]))
    if root is not None:
        return list(_check(resource, root, resource["kind"]))
    return [problem for version in VERSIONS for problem in _refusal(resource, version)]


def _refusal(resource: dict[str, Any], version: str) -> Iterator[str]:
    """What this version of Kubernetes would say."""
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{version}: {'.'.join(map(str, error.path))}: {error.message}"


def _check(value: Any, kind: str, where: str) -> Iterator[str]:
    if kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{where}: {value!r} is no {kind}"
    elif kind in _QUANTITIES:
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?", str(value)):
            yield f"{where}: {value!r} is no quantity"
    elif kind.startswith("list["):
        if not isinstance(value, list):
            yield f"{where}: no list"
            return
        for number, inner in enumerate(value):
            yield from _check(inner, kind[5:-1], f"{where}[{number}]")
    elif kind.startswith("dict("):
        if not isinstance(value, dict):
            yield f"{where}: no object"
            return
        for key, inner in value.items():
            yield from _check(inner, kind[5:-1].partition(", ")[2], f"{where}.{key}")
    elif kind in _recorded():
        yield from _check_fields(value, _recorded()[kind], where)
    else:
        for error in _definition(kind).iter_errors(value):
            yield f"{where}.{'.'.join(map(str, error.path))}: {error.message}"


def _check_fields(value: Any, model: dict[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: no object"
        return
    for key in model["required"]:
        if key not in value:
            yield f"{where}: {key} is missing"
    for key, inner in value.items():
        if key not in model["fields"]:
            yield f"{where}: there is no {key}"
        else:
            yield from _check(inner, model["fields"][key], f"{where}.{key}")


@cache
def _recorded() -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path in sorted(_RECORDED.glob("*.json")):
        result.update(json.loads(path.read_text(encoding="utf-8"))["types"])
    return result


@cache
def _definitions() -> dict[str, Any]:
    version = VERSIONS[-1]
    return schema_contents(f"kubernetes-json-schema/v{version}-local-strict/_definitions.json", version)


@cache
def _definition(kind: str) -> jsonschema.Draft202012Validator:
    """The schema of one of Kubernetes' types. Raises KeyError for a type that is not recorded either."""
    definitions = _definitions()["$defs"]
    name = _published_name(kind)
    definitions[name]
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def _published_name(kind: str) -> str:
    """KServe's Python package calls types by the last parts of their names."""
    if kind in ("V1ObjectMeta", "V1LabelSelector"):
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{kind.removeprefix('V1')}"
    if result := re.fullmatch(r"K8sIoApi(Autoscaling|Apps)(V\d)(\w+)", kind):
        return f"io.k8s.api.{result[1].lower()}.{result[2].lower()}.{result[3]}"
    return f"io.k8s.api.core.v1.{kind.removeprefix('V1')}"
