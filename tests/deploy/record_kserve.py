"""Records the fields of KServe's resources from the wheel of its Python package.

    pip download --no-deps kserve && python -m tests.deploy.record_kserve kserve-*.whl

The package's models are made from KServe's OpenAPI document: each has a table of its fields' types, one of
their JSON names, and refuses None where a field is required. They are read, not imported: the package needs
much that a server must not have beside it.
"""

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded") / "kserve.json"
ROOTS = ("V1beta1InferenceService", "V1alpha1ServingRuntime", "V1alpha1ClusterServingRuntime")
# Other ways to write a predictor than ``model``, and components that no manifest of ours has.
_LEFT_OUT = re.compile(
    r"V1beta1(Explainer|Transformer|Worker|Tracing|Canary)Spec"
    r"|V1beta1\w*(Server|Runtime|Boost|GBM|Learn|PMML|Serving|Triton|Serve)Spec"
)


def read_model(source: str) -> dict[str, Any]:
    """The JSON names of a model's fields with their types, and which of them must be there."""
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and isinstance(target := node.targets[0], ast.Name)
        and target.id in {"openapi_types", "attribute_map"}
    }
    names = tables["attribute_map"]
    needed = set(re.findall(r"Invalid value for `(\w+)`, must not be `None`", source))
    return {
        "fields": {names[field]: kind for field, kind in tables["openapi_types"].items()},
        "required": sorted(names[field] for field in needed),
    }


def record(wheel: Path) -> dict[str, Any]:
    """The types that ROOTS lead to, by name."""
    archive = zipfile.ZipFile(wheel)
    sources: dict[str, str] = {}
    for name in archive.namelist():
        if re.fullmatch(r"kserve/models/\w+\.py", name):
            source = archive.read(name).decode()
            if result := re.search(r"^class (\w+)\(object\)", source, re.MULTILINE):
                sources[result[1]] = source
    types: dict[str, Any] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name in types or name not in sources or _LEFT_OUT.fullmatch(name):
            continue
        types[name] = read_model(sources[name])
        waiting += re.findall(r"V1\w+", " ".join(types[name]["fields"].values()))
    return {"source": wheel.name, "types": dict(sorted(types.items()))}


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(Path(sys.argv[1])), indent=1) + "\n", encoding="utf-8")
