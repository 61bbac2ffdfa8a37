"""``ModelExportUtils``: the steps of making an archive, one by one.

How TorchServe's walks through folders (``archive_dir``, ``directory_filter``, ``file_filter``) is left out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.archiver import (
    BUILT_IN_HANDLERS,
    SUFFIXES,
    ArchiveConfig,
    ArchiverError,
    StrPath,
    check_directory,
    check_name,
    check_overwriting,
    collect,
    make_manifest,
    manifest_text,
    pack_folder,
)
from modelserver.model_archiver.manifest_components.model import Model
from modelserver.model_archiver.model_archiver_config import as_archive_config

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig

__all__ = ["ModelExportUtils"]


class ModelExportUtils:
    """What the archiver is made of; raises ``ModelArchiverError`` where the archiver would."""

    @staticmethod
    def get_archive_export_path(export_file_path: StrPath, model_name: str, archive_format: str) -> str:
        """The path of the archive in that directory."""
        return os.path.join(export_file_path, f"{model_name}{SUFFIXES[archive_format]}")

    @staticmethod
    def check_mar_already_exists(
        model_name: str, export_file_path: StrPath | None, overwrite: bool, archive_format: str = "default"
    ) -> str:
        """The directory for the archive, the current one by default; an archive there may be in the way."""
        folder = os.getcwd() if export_file_path is None else os.fspath(export_file_path)
        target = Path(ModelExportUtils.get_archive_export_path(folder, model_name, archive_format))
        if target.exists():
            check_overwriting(target, force=overwrite)
        return folder

    @staticmethod
    def find_unique(files: Iterable[str], suffix: str) -> str | None:
        """The one file of that suffix, None if there is none; several are an error."""
        found = [file for file in files if file.endswith(suffix)]
        if len(found) > 1:
            raise ArchiverError(f"Only one {suffix} file is expected, there are {len(found)}: {found}.")
        return found[0] if found else None

    @staticmethod
    def generate_model(modelcfg: ModelArchiverConfig | Namespace) -> Model:
        """The model's part of the manifest."""
        config = as_archive_config(modelcfg)
        written = make_manifest(config)["model"]
        return Model.read(written if isinstance(written, dict) else {})

    @staticmethod
    def generate_manifest_json(config: ModelArchiverConfig | Namespace) -> str:
        """The manifest's text."""
        return manifest_text(as_archive_config(config))

    @staticmethod
    def clean_temp_files(temp_files: Iterable[StrPath]) -> None:
        """Delete these files."""
        for file in temp_files:
            os.remove(file)

    @staticmethod
    def make_dir(d: StrPath) -> None:
        """Make the directory unless it is there."""
        Path(d).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def copy_artifacts(model_name: str, runtime: str, **kwargs: str | None) -> str:
        """Copy the given files as the archive would have them into a directory, which is made; its path.

        Other than TorchServe's, whose directory has a fixed name that others may hold, it is a fresh one.
        """
        handler = kwargs.get("handler") or BUILT_IN_HANDLERS[0]
        given = {key: value for key, value in kwargs.items() if key != "handler" and value}
        contents = collect(ArchiveConfig(model_name, handler, "1.0", runtime=runtime, **given))  # type: ignore[arg-type]
        folder = Path(tempfile.mkdtemp(), model_name)
        folder.mkdir()
        for name, source in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
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
    def check_model_name_regex_or_exit(model_name: str) -> None:
        """Refuse a name that no archive may have."""
        check_name(model_name)

    @staticmethod
    def validate_inputs(model_name: str, export_path: StrPath) -> None:
        """Refuse such a name, and a directory that is none."""
        check_name(model_name)
        check_directory(export_path)
