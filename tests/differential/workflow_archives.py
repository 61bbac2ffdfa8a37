"""The workflow archives of the comparison."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Mapping

CODE: Final = Path(__file__).parent / "workflow_code"
FUNCTIONS: Final = (CODE / "functions.py").read_bytes()

_TOLD: Final = "models:\n  model:\n    url: tells.mar\n"
_RETURNS: Final = "models:\n  returns:\n    url: returns.mar\n"
_GLOBALS: Final = (
    "models:\n  min-workers: 1\n  max-workers: 2\n  batch-size: 2\n  max-batch-delay: 10\n"
    "  retry-attempts: 0\n  timeout-ms: 9000\n"
)
SPECIFICATIONS: Final = {
    "w_chain": f"{_TOLD}dag:\n  first: [model]\n  model: [join]\n",
    "w_all_keys": f"{_GLOBALS}  model:\n    url: tells.mar\n    max-workers: 3\n    batch-size: 4\n"
    "    max-batch-delay: 20\n    retry-attempts: 2\n    timeout-ms: 8000\n    min-workers: 2\n"
    "dag:\n  model: []\n",
    "w_globals_last": "models:\n  model:\n    url: tells.mar\n  batch-size: 3\n  max-workers: 2\n"
    "dag:\n  model: []\n",
    "w_pipeline": "models:\n  detects:\n    url: tells.mar\n  classifies:\n    url: tells.mar\n"
    "dag:\n  detects: [first]\n  first: [classifies]\n",
    "w_two_models": "models:\n  one:\n    url: tells.mar\n  other:\n    url: tells.mar\n"
    "dag:\n  first: [one, other]\n  one: [join]\n  other: [join]\n",
    "w_diamond": "models: {}\ndag:\n  first: [left, right]\n  left: [join]\n  right: [join]\n",
    "w_ends": "models: {}\ndag:\n  first: [left, right]\n",
    "w_context": "models: {}\ndag:\n  told: []\n",
    "w_told": f"{_TOLD}dag:\n  model: [told]\n",
    "w_types": f"{_RETURNS}dag:\n  returns: [join]\n",
    "w_last_types": f"{_RETURNS}dag:\n  returns: []\n",
    "w_only_model": f"{_TOLD}dag:\n  model: []\n",
    "w_spare_model": f"{_TOLD}  spare:\n    url: absent.mar\ndag:\n  model: []\n",
    "w_fails": "models:\n  retry-attempts: 0\n  timeout-ms: 60000\n  fails:\n    url: fails.mar\n"
    "dag:\n  fails: []\n",
    "w_branch_fails": "models: {}\ndag:\n  first: [left, fails]\n",
    "w_second_time": "models: {}\ndag:\n  second_time: []\n",
    "w_nothing": "models: {}\ndag:\n  nothing: []\n",
    "w_responds": "models:\n  responds:\n    url: responds.mar\ndag:\n  responds: []\n",
    "w_sleeper": "models:\n  retry-attempts: 0\n  timeout-ms: 400\n  sleeper:\n    url: sleeper.mar\n"
    "dag:\n  sleeper: []\n",
    "w_batch": "models:\n  batch-size: 3\n  max-batch-delay: 2000\n  sleeper:\n    url: sleeper.mar\n"
    "dag:\n  sleeper: []\n",
    "w_cycle": "models: {}\ndag:\n  first: [left]\n  left: [right]\n  right: [left]\n",
    "w_pair": "models: {}\ndag:\n  left: [right]\n  right: [left]\n",
    "w_self": "models: {}\ndag:\n  first: [first]\n",
    "w_starts": "models: {}\ndag:\n  left: [join]\n  right: [join]\n",
    "w_apart": "models: {}\ndag:\n  first: [left]\n  right: [join]\n",
    "w_absent_function": "models: {}\ndag:\n  absent: []\n",
    "w_absent_archive": "models:\n  model:\n    url: absent.mar\ndag:\n  model: []\n",
    "w_no_url": "models:\n  model:\n    batch-size: 1\ndag:\n  model: []\n",
    "w_no_dag": _TOLD,
    "w_empty_dag": f"{_TOLD}dag: {{}}\n",
    "w_text_number": "models:\n  min-workers: two\n  model:\n    url: tells.mar\ndag:\n  model: [join]\n",
    "w_text_node": "models: {}\ndag:\n  first: left\n",
    "w_unknown_key": "models:\n  unknown: 1\n  model:\n    url: tells.mar\n    more: 1\n"
    "dag:\n  model: []\nmore: 1\n",
    "w_bad_yaml": "models: [\n",
    "w_tagged": "models: !!python/object/apply:os.getcwd []\ndag:\n  first: [left]\n",
    "w_list": "- models\n",
    "w_models_list": "models: [a]\ndag:\n  first: [left]\n",
    "w_slash": 'models: {}\ndag:\n  first: ["../left"]\n',
}


def build_workflows(store: Path) -> None:
    """Fills the folder with every workflow archive that the chapter names."""
    build_archive(ArchiveConfig("sleeper", str(CODE / "sleeper.py"), "1.0", export_path=store))
    for name, specification in SPECIFICATIONS.items():
        _pack(store / f"{name}.war", workflow_files(name, specification))
    chain = SPECIFICATIONS["w_only_model"]
    for name, changes in {
        "w_no_name": {"workflowName": ...},
        "w_no_spec": {"specFile": ...},
        "w_absent_spec": {"specFile": "absent.yaml"},
        "w_outer_spec": {"specFile": "../flow.yaml"},
        "w_outer_handler": {"handler": "../functions.py"},
    }.items():
        _pack(store / f"{name}.war", workflow_files(name, chain, **changes))
    files = workflow_files("w_no_manifest", chain)
    _pack(store / "w_slip.war", {**workflow_files("w_slip", chain), "../w_slip_was_here.txt": b"x"})
    del files["WAR-INF/MANIFEST.json"]
    _pack(store / "w_no_manifest.war", files)
    _pack(store / "w_empty_manifest.war", {**files, "WAR-INF/MANIFEST.json": b"{}"})
    _pack(store / "w_cut_manifest.war", {**files, "WAR-INF/MANIFEST.json": b'{"workflow": {'})
    (store / "w_text.war").write_bytes(b"this is no archive\n")
    bare = workflow_files("w_bare", chain, handler=None)
    del bare["functions.py"]
    _pack(store / "w_bare.war", bare)


def _pack(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def workflow_files(name: str, specification: str, **changes: object) -> dict[str, bytes]:
    """The files of a workflow's archive; ``changes`` are fields of its manifest, an ellipsis removes one."""
    workflow = {"workflowName": name, "specFile": "flow.yaml", "handler": "functions.py", **changes}
    kept = {key: value for key, value in workflow.items() if value is not ...}
    document = {"createdOn": "01/02/2021 03:04:05", "archiverVersion": "0.2.15", "workflow": kept}
    return {
        "flow.yaml": specification.encode(),
        "functions.py": FUNCTIONS,
        "WAR-INF/MANIFEST.json": json.dumps(document).encode(),
    }
