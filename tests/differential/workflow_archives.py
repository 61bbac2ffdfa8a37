"""The workflow archives of the comparison."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from modelserver.tools.archiver import ArchiveConfig, build_archive

CODE: Final = Path(__file__).parent / "workflow_code"
FUNCTIONS: Final = (CODE / "functions.py").read_bytes()

SPECIFICATIONS: Final[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("workflows.yaml").read_text("utf-8")
)


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
    saved = {key: value for key, value in workflow.items() if value is not ...}
    document = {"createdOn": "01/02/2021 03:04:05", "archiverVersion": "0.2.15", "workflow": saved}
    return {
        "flow.yaml": specification.encode(),
        "functions.py": FUNCTIONS,
        "WAR-INF/MANIFEST.json": json.dumps(document).encode(),
    }
