"""The model store of the comparison: made in code, the same for every server."""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.differential.configurations import CONFIGS
from tests.differential.networks import build_configured, build_networks
from tests.differential.workflow_archives import build_workflows

from modelserver.tools.archiver import ArchiveConfig, build_archive

HERE: Final = Path(__file__).parent
MODEL_CODE: Final = HERE / "model_code"
TORCHSERVES: Final = HERE / "recorded" / "archives"
"""One archive of each format, made by the real torch-model-archiver; see :mod:`tests.differential.record`."""
SAVED_SUFFIX: Final = ".kept"
"""The suffix of their names: files with the suffix of an archive are ignored by git."""

PLAIN: Final = (MODEL_CODE / "plain.py").read_bytes()
_PLAIN_FILE: Final = str(MODEL_CODE / "plain.py")
_PLAIN_MODEL: Final = {"handler": "plain.py", "modelVersion": "1.0"}


def build_store(store: Path) -> None:
    """Fills the folder with every archive that the chapters name."""
    store.mkdir(parents=True, exist_ok=True)
    for handler in sorted(MODEL_CODE.glob("*.py")):
        build_archive(ArchiveConfig(handler.stem, str(handler), "1.0", export_path=store))
    _versions(store)
    _formats(store)
    _manifests(store)
    _broken(store)
    _configurations(store)
    _pictures(store)
    build_configured(store)
    build_networks(store)
    build_workflows(store)
    for made in TORCHSERVES.iterdir() if TORCHSERVES.is_dir() else ():
        target = store / made.name.removesuffix(SAVED_SUFFIX)
        shutil.copytree(made, target) if made.is_dir() else shutil.copy(made, target)


def configured(**changes: Any) -> ArchiveConfig:
    """An archive with everything that an archive may hold, as both archivers take it."""
    parts = HERE / "archive_parts"
    fields: dict[str, Any] = {
        "model_name": "configured",
        "handler": str(MODEL_CODE / "configured.py"),
        "version": "1.0",
        "serialized_file": str(parts / "weights.bin"),
        "model_file": str(parts / "net.py"),
        "extra_files": f"{parts / 'extra'},{parts / 'notes'}/*.txt",
        "requirements_file": str(parts / "requirements.txt"),
        "config_file": str(parts / "model-config.yaml"),
        **changes,
    }
    return ArchiveConfig(**fields)


def _versions(store: Path) -> None:
    for version in ("2.0", "3"):
        config = ArchiveConfig("plain", _PLAIN_FILE, version, export_path=store / ".made")
        build_archive(config).replace(store / f"plain-{version}.mar")
    shutil.rmtree(store / ".made")


def _formats(store: Path) -> None:
    formats = {"default": "default", "store": "zip-store", "tgz": "tgz", "folder": "no-archive"}
    for name, archive_format in formats.items():
        build_archive(configured(model_name=f"ours_{name}", archive_format=archive_format, export_path=store))
    entry = MODEL_CODE / "entry"
    for name, handler in (("entry_module", f"{entry}:go"), ("entry_file", f"{entry}.py:go")):
        build_archive(ArchiveConfig(name, handler, "1.0", export_path=store))
    wrapped = store / "wrapped"
    wrapped.mkdir()
    inner = ArchiveConfig("inner", _PLAIN_FILE, "1.0", archive_format="no-archive", export_path=wrapped)
    build_archive(inner)
    shutil.copy(store / "ours_tgz.tar.gz", store / "renamed.model")
    shutil.copy(store / "plain.mar", store / "renamed.zip")
    write_tar(store / "flat.tar.gz", plain_files("flat"))


def plain_files(name: str | None, **manifest: Any) -> dict[str, bytes]:
    """The files of an archive with the plain handler; ``manifest`` changes fields of its manifest."""
    model = {**({} if name is None else {"modelName": name}), **_PLAIN_MODEL, **manifest.pop("model", {})}
    document = {
        "createdOn": "25/07/2020 00:48:08",
        "runtime": "python",
        "archiverVersion": "0.12.0",
        "model": {key: value for key, value in model.items() if value is not ...},
        **manifest,
    }
    saved = {key: value for key, value in document.items() if value is not ...}
    return {"plain.py": PLAIN, "MAR-INF/MANIFEST.json": json.dumps(saved).encode()}


def write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _manifests(store: Path) -> None:
    """Variants that archivers of all ages and people wrote."""
    old = {
        "specificationVersion": "1.0",
        "implementationVersion": "1.0",
        "modelServerVersion": "1.0",
        "description": "old",
        "engine": {"engineName": "pytorch"},
        "license": "Apache 2.0",
        "userData": {"a": 1},
    }
    variants: dict[str, dict[str, Any]] = {
        "m_old": {**old, "createdOn": ..., "archiverVersion": ...},
        "m_short": {"createdOn": ..., "archiverVersion": ..., "runtime": ..., "model": {"modelVersion": ...}},
        "m_python3": {"runtime": "python3"},
        "m_extensions": {"model": {"extensions": "index.json", "description": "x", "envelope": "body"}},
        "m_number_version": {"model": {"modelVersion": 2}},
        "m_float_version": {"model": {"modelVersion": 1.10}},
        "m_word_version": {"model": {"modelVersion": "beta-1"}},
        "m_null_fields": {"model": {"serializedFile": None, "modelFile": None, "configFile": None}},
        "m_bad_runtime": {"runtime": "java"},
        "m_upper_runtime": {"runtime": "PYTHON"},
        "m_null_runtime": {"runtime": None},
        "m_lsp": {"runtime": "LSP"},
        "m_no_handler": {"model": {"handler": ...}},
        "m_wrong_handler": {"model": {"handler": "absent.py"}},
        "m_handler_folder": {"model": {"handler": "sub/plain.py"}},
        "m_absent_config": {"model": {"configFile": "absent.yaml"}},
        "m_absent_requirements": {"model": {"requirementsFile": "absent.txt"}},
    }
    for name, changes in variants.items():
        files = plain_files(name, **changes)
        if name == "m_handler_folder":
            files = {"sub/plain.py": PLAIN, **files}
            del files["plain.py"]
        write_zip(store / f"{name}.mar", files)
    write_zip(store / "m_no_name.mar", plain_files(None))
    write_zip(store / "m_no_manifest.mar", {"plain.py": PLAIN})
    nothing = {"plain.py": PLAIN, "MAR-INF/MANIFEST.json": b'{"runtime": "python"}'}
    write_zip(store / "m_no_model.mar", nothing)


def _configurations(store: Path) -> None:
    """An archive for each document; its handler answers with what it is given of it."""
    handler = (MODEL_CODE / "configuration.py").read_bytes()
    for name, text in CONFIGS.items():
        files = plain_files(f"c_{name}", model={"handler": "plain.py", "configFile": "model-config.yaml"})
        write_zip(store / f"c_{name}.mar", {**files, "plain.py": handler, "model-config.yaml": text.encode()})


def _broken(store: Path) -> None:
    for name, manifest in (
        ("b_truncated", b'{"model": {"modelName": "b'),
        ("b_list", b"[]"),
        ("b_empty_manifest", b""),
        ("b_model_text", b'{"model": "x"}'),
    ):
        write_zip(store / f"{name}.mar", {"plain.py": PLAIN, "MAR-INF/MANIFEST.json": manifest})
    config = {"model": {"configFile": "model-config.yaml"}}
    texts = {"b_yaml": b"minWorkers: [\n", "b_yaml_tag": b"say: !!python/object/apply:os.getcwd []\n"}
    for name, text in texts.items():
        write_zip(store / f"{name}.mar", {**plain_files(name, **config), "model-config.yaml": text})
    write_zip(store / "b_slip.mar", {**plain_files("b_slip"), "../b_slip_was_here.txt": b"x"})
    below = {f"b/{key}": value for key, value in plain_files("b_slip").items()}
    write_tar(store / "b_slip.tar.gz", {**below, "b/../../b_slip_was_here.txt": b"x"})
    (store / "b_text.mar").write_bytes(b"this is no archive\n")
    (store / "b_empty.mar").write_bytes(b"")
    (store / "b_text.tar.gz").write_bytes(b"this is no archive\n")
    (store / "b_cut.mar").write_bytes((store / "plain.mar").read_bytes()[:-40])


def _pictures(store: Path) -> None:
    """Tiny classifiers whose answers can be computed by hand: a matrix times the mean colour."""
    import torch

    class Tiny(torch.nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.head = torch.nn.Linear(3, classes)
            values = torch.arange(3.0 * classes).reshape(classes, 3) / 8 - 0.5
            self.head.weight = torch.nn.Parameter(values, requires_grad=False)
            self.head.bias = torch.nn.Parameter(torch.zeros(classes), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(x.mean(dim=[2, 3]))
            return scores

    made = store / ".made"
    made.mkdir()
    for name, classes in {"tiny_named": 6, "tiny_numbered": 6, "tiny_two": 2}.items():
        torch.jit.script(Tiny(classes).eval()).save(str(made / f"{name}.pt"))  # type: ignore[no-untyped-call]
        labels = made / "index_to_name.json"
        labels.write_text(json.dumps({str(number): f"label {number}" for number in range(classes)}))
        weights, extra = str(made / f"{name}.pt"), str(labels) if name == "tiny_named" else None
        build_archive(
            ArchiveConfig(name, "image_classifier", "1.0", weights, extra_files=extra, export_path=store)
        )
    shutil.rmtree(made)
