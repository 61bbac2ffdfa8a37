"""``ModelExportUtils``: the steps of making an archive, one by one."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.model_archiver.manifest_components.manifest import Manifest, RuntimeType
from modelserver.model_archiver.manifest_components.model import Model
from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig, as_archive_config
from modelserver.model_archiver.model_archiver_error import ModelArchiverError
from modelserver.tools.archiver import (
    BUILT_IN_HANDLERS,
    SKIPPED_FOLDERS,
    SUFFIXES,
    ArchiveConfig,
    ArchiverError,
    StrPath,
    check_directory,
    check_format,
    check_name,
    check_overwriting,
    check_runtime,
    collect,
    make_manifest,
    manifest_text,
    pack_folder,
    warn_of_mistakes,
)

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = [
    "MANIFEST_FILE_NAME",
    "MAR_INF",
    "Manifest",
    "Model",
    "ModelArchiverConfig",
    "ModelArchiverError",
    "ModelExportUtils",
    "RuntimeType",
    "archiving_options",
    "model_handlers",
    "zipfile",
]

archiving_options: Final = dict(SUFFIXES)
"""Each format and the suffix of its archives."""

model_handlers: Final = dict.fromkeys(BUILT_IN_HANDLERS, "")
"""The handlers that are named without a file."""

MAR_INF: Final = "MAR-INF"
MANIFEST_FILE_NAME: Final = "MANIFEST.json"

PARTS: Final = ("model_file", "serialized_file", "handler", "extra_files", "requirements_file", "config_file")
"""What goes into an archive, as fields of its configuration."""


class ModelExportUtils:
    """What the archiver is made of; raises ``ModelArchiverError`` where the archiver would."""

    @staticmethod
    def get_archive_export_path(export_file_path: StrPath, model_name: str, archive_format: str) -> str:
        check_format(archive_format)
        return os.path.join(export_file_path, f"{model_name}{SUFFIXES[archive_format]}")

    @staticmethod
    def check_mar_already_exists(
        model_name: str, export_file_path: StrPath | None, overwrite: bool, archive_format: str = "default"
    ) -> str:
        """The directory for the archive, the current one by default; an archive there may be in the way."""
        folder = os.getcwd() if export_file_path is None else os.fspath(export_file_path)
        target = ModelExportUtils.get_archive_export_path(folder, model_name, archive_format)
        if os.path.exists(target):
            check_overwriting(Path(target), force=overwrite)
        return folder

    @staticmethod
    def find_unique(files: Iterable[str], suffix: str) -> str | None:
        """The one file of that suffix, None if there is none; several are an error."""
        matches = [file for file in files if file.endswith(suffix)]
        if len(matches) > 1:
            raise ArchiverError(f"Only one {suffix} file is expected, there are {len(matches)}: {matches}.")
        return matches[0] if matches else None

    @staticmethod
    def generate_model(modelcfg: ModelArchiverConfig | Namespace) -> Model:
        config = as_archive_config(modelcfg)
        written = make_manifest(config)["model"]
        return Model.read(written if isinstance(written, dict) else {})

    @staticmethod
    def generate_manifest_json(config: ModelArchiverConfig | Namespace) -> str:
        return manifest_text(as_archive_config(config))

    @staticmethod
    def clean_temp_files(temp_files: Iterable[StrPath]) -> None:
        for file in temp_files:
            os.remove(file)

    @staticmethod
    def make_dir(d: StrPath) -> None:
        Path(d).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def copy_artifacts(model_name: str, runtime: str, **kwargs: str | None) -> str:
        """Copy the given files, as the archive would have them, into a new directory; returns its path.

        TorchServe's directory has a fixed name, which others may hold. A part of an unknown name is copied as
        a file. Raises ``ModelArchiverError`` for a runtime
        that does not exist, and ``FileNotFoundError``.
        """
        check_runtime(runtime)
        parts = {key.replace("-", "_"): value for key, value in kwargs.items() if value}
        known = {key: parts.pop(key) for key in PARTS if key in parts}
        handler = known.pop("handler", BUILT_IN_HANDLERS[0])
        config = ArchiveConfig(model_name, str(handler), "1.0", runtime=runtime, **known)  # type: ignore[arg-type]
        contents = collect(config)
        warn_of_mistakes(config, contents)
        folder = Path(tempfile.mkdtemp(prefix=f"{model_name}-"))
        for name, source in [*contents.items(), *((Path(str(each)).name, each) for each in parts.values())]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(source), folder / name)
        return str(folder)

    @staticmethod
    def archive(
        export_file: StrPath,
        model_name: str,
        model_path: StrPath,
        manifest: str,
        archive_format: str = "default",
    ) -> None:
        """Pack what lies in ``model_path`` into the directory ``export_file``, under that manifest."""
        config = ArchiveConfig(model_name, "", "", export_path=export_file, archive_format=archive_format)
        pack_folder(config, model_path, manifest)

    @staticmethod
    def archive_dir(
        path: StrPath, dst: tarfile.TarFile | zipfile.ZipFile | StrPath, archive_format: str, model_name: str
    ) -> None:
        """Put the files of a directory into an open archive, or into another directory."""
        for parent, folders, files in os.walk(path):
            folders[:] = [
                each for each in folders if ModelExportUtils.directory_filter(each, SKIPPED_FOLDERS)
            ]
            for source in (Path(parent, file) for file in files):
                name = source.relative_to(path)
                if isinstance(dst, tarfile.TarFile):
                    dst.add(source, arcname=str(Path(model_name, name)))
                elif isinstance(dst, zipfile.ZipFile):
                    dst.write(source, str(name))
                else:
                    target = Path(dst, name)
                    ModelExportUtils.make_dir(target.parent)
                    shutil.copy(source, target)

    @staticmethod
    def directory_filter(directory: str, unwanted_dirs: Collection[str]) -> bool:
        """Whether a directory of that name goes into an archive."""
        return directory not in unwanted_dirs and not directory.startswith(".")

    @staticmethod
    def file_filter(current_file: str, files_to_exclude: Collection[str]) -> bool:
        """Whether a file of that name goes into an archive."""
        excluded = {MANIFEST_FILE_NAME, *files_to_exclude}
        return current_file not in excluded and not current_file.endswith((".pyc", ".DS_Store", ".mar"))

    @staticmethod
    def check_model_name_regex_or_exit(model_name: str) -> None:
        """Refuse a name that no archive may have."""
        check_name(model_name)

    @staticmethod
    def validate_inputs(model_name: str, export_path: StrPath) -> None:
        """Refuse such a name, and a directory that is none."""
        check_name(model_name)
        check_directory(export_path)
