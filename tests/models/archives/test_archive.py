from __future__ import annotations

import errno
import json
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from modelserver.errors import InternalError, InvalidModel
from modelserver.models.archives.archive import nameless, open_archive
from modelserver.models.archives.manifest import Manifest

if TYPE_CHECKING:
    from pathlib import Path


def files(config: str | None = "minWorkers: 1\n", **model: str) -> dict[str, bytes]:
    fields = {"modelName": "noop", "handler": "handler.py", **model}
    content = {"handler.py": b"def handle(data, context): return data"}
    if config is not None:
        fields["configFile"] = "model-config.yaml"
        content["model-config.yaml"] = config.encode()
    content["MAR-INF/MANIFEST.json"] = json.dumps({"runtime": "python", "model": fields}).encode()
    return content


def make_zip(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def make_folder(path: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_file_is_unpacked_and_described(tmp_path: Path) -> None:
    """An archive file becomes a private directory with manifest and configuration text."""
    path = make_zip(tmp_path / "noop.mar", files())

    archive = open_archive(path, "noop.mar", tmp_path / "work")

    assert archive.url == "noop.mar"
    assert archive.model_dir.parent == tmp_path / "work"
    assert (archive.model_dir / "handler.py").is_file()
    assert archive.manifest.model_name == "noop"
    assert archive.config_text == "minWorkers: 1\n"
    assert archive.temporary


def test_close_deletes_what_was_unpacked(tmp_path: Path) -> None:
    """Closing removes the unpacked directory, keeps the archive, and may be repeated."""
    path = make_zip(tmp_path / "noop.mar", files())
    archive = open_archive(path, "noop.mar", tmp_path / "work")

    archive.close()
    archive.close()

    assert list((tmp_path / "work").iterdir()) == []
    assert path.exists()


def test_remove_deletes_the_download(tmp_path: Path) -> None:
    """Unregistering a model that came from a URL deletes its file from the model store."""
    path = make_zip(tmp_path / "noop.mar", files())

    opened = open_archive(path, "https://x/noop.mar", tmp_path / "work")
    replace(opened, downloaded=path).remove()

    assert not path.exists()


def test_directory_is_used_in_place(tmp_path: Path) -> None:
    """A model directory is neither copied nor ever deleted."""
    folder = make_folder(tmp_path / "noop", files())

    archive = open_archive(folder, "noop", tmp_path / "work")
    archive.remove()

    assert archive.model_dir == folder
    assert not archive.temporary
    assert (folder / "handler.py").exists()
    assert not (tmp_path / "work").exists()


def test_only_folder_of_a_directory_is_used(tmp_path: Path) -> None:
    """A directory with one sub-directory and nothing else stands for that sub-directory."""
    make_folder(tmp_path / "outer" / "inner", files())

    assert open_archive(tmp_path / "outer", "outer", tmp_path).model_dir == tmp_path / "outer" / "inner"


def test_only_folder_is_not_followed_as_a_link(tmp_path: Path) -> None:
    """A link does not lead out of the directory that holds it."""
    make_folder(tmp_path / "elsewhere", files())
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "inner").symlink_to(tmp_path / "elsewhere")

    opened = open_archive(tmp_path / "outer", "outer", tmp_path)

    assert opened.model_dir == tmp_path / "outer"
    assert opened.manifest.missing


def test_archive_without_manifest_needs_a_name(tmp_path: Path) -> None:
    """F59: the model's name is not guessed from an archive without a manifest; the error names the
    archive and the reason.
    """
    archive = open_archive(make_zip(tmp_path / "x.mar", {"handler.py": b""}), "x.mar", tmp_path / "work")

    assert archive.manifest == Manifest(missing=True)
    assert nameless(archive.url, archive.manifest).message == (
        "Model name is not defined. Archive 'x.mar': MAR-INF/MANIFEST.json is missing, "
        "and the registration gives no model_name."
    )


def test_manifest_without_name_is_reported(tmp_path: Path) -> None:
    """F59: a manifest without modelName is named as the cause, with the archive."""
    content = {"MAR-INF/MANIFEST.json": b"{}"}

    archive = open_archive(make_zip(tmp_path / "x.mar", content), "x.mar", tmp_path / "work")

    assert (
        "'x.mar': MAR-INF/MANIFEST.json has no modelName" in nameless(archive.url, archive.manifest).message
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"MAR-INF/MANIFEST.json": b"{"}, "Failed to parse signature.json. "),
        ({"MAR-INF/MANIFEST.json": b'{"runtime": "java"}'}, "Runtime is not defined or invalid. "),
        (files(handler="../up.py:go"), "Invalid handler '../up.py:go': "),
    ],
    ids=range(3),
)
def test_refusals_begin_in_torchserves_words_and_name_the_archive(
    tmp_path: Path, content: dict[str, bytes], message: str
) -> None:
    """F59: errors of a manifest name its archive."""
    with pytest.raises(InvalidModel) as caught:
        open_archive(make_zip(tmp_path / "x.mar", content), "x.mar", tmp_path / "work")

    assert caught.value.message.startswith(message)
    assert caught.value.message.endswith(" Archive: 'x.mar'.")


def test_manifest_alone_is_a_model(tmp_path: Path) -> None:
    """MAR-INF is never taken for the only sub-directory."""
    folder = make_folder(tmp_path / "m", {"MAR-INF/MANIFEST.json": b'{"model": {"modelName": "m"}}'})

    assert open_archive(folder, "m", tmp_path).manifest.model_name == "m"


def test_generated_directory_goes_with_close(tmp_path: Path) -> None:
    """A directory that the server wrote itself is deleted on close."""
    folder = make_folder(tmp_path / "made", files())

    open_archive(folder, "torchvision://x", tmp_path, temporary=True).close()

    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"MAR-INF/MANIFEST.json": b"{"}, "Failed to parse signature.json."),
        ({"MAR-INF/MANIFEST.json": bytes(5 << 20)}, "larger than"),
        (files(None, configFile="none.yaml"), "configFile 'none.yaml'"),
        (files(None, configFile="MAR-INF"), "configFile 'MAR-INF'"),
        ({**files(), "model-config.yaml": b"\xff"}, "not UTF-8"),
        (files(handler="../up.py:go"), "Invalid handler"),
        (files(handler="os:system"), "os is a standard module of Python"),
        (files(handler="os.path:join"), "os is a standard module of Python"),
        (files(handler="subprocess.py:run"), "subprocess is a standard module of Python"),
    ],
    ids=range(9),
)
def test_unusable_content_leaves_nothing(tmp_path: Path, content: dict[str, bytes], message: str) -> None:
    """F59: content that cannot be served is a 400, and nothing that was unpacked stays."""
    path = make_zip(tmp_path / "x.mar", content)

    with pytest.raises(InvalidModel) as caught:
        open_archive(path, "https://h/x.mar", tmp_path / "work")

    assert message in caught.value.message
    assert "x.mar" in caught.value.message
    assert list((tmp_path / "work").iterdir()) == []


def test_closing_gives_back_what_is_held(tmp_path: Path) -> None:
    """What was taken elsewhere for an archive is given back once, however it ends."""
    archive = open_archive(make_zip(tmp_path / "x.mar", files()), "x.mar", tmp_path / "work")
    released: list[str] = []
    archive.held.append(lambda: released.append("environment"))
    archive.remove()
    archive.close()

    assert released == ["environment"]


def test_mar_that_is_no_zip_is_a_clear_400(tmp_path: Path) -> None:
    """A .mar of other content is refused in words, and stays in the store it was put in."""
    (tmp_path / "dummy.mar").write_text("dummy")

    with pytest.raises(InvalidModel, match=r"'dummy\.mar': it is neither a zip file"):
        open_archive(tmp_path / "dummy.mar", "dummy.mar", tmp_path / "work")
    assert (tmp_path / "dummy.mar").exists()


def test_own_file_may_be_named_like_a_python_module(tmp_path: Path) -> None:
    """F59: a file of the archive is meant when it shares its name with a module of Python."""
    content = {**files(handler="code.py:handle"), "code.py": b""}

    archive = open_archive(make_zip(tmp_path / "x.mar", content), "x.mar", tmp_path / "work")

    assert archive.manifest.handler == "code.py:handle"
    with pytest.raises(InvalidModel, match=r"standard module of Python\. Archive: 'x\.mar'\.$"):
        archive.check_handler("os:system")


def test_no_space_is_the_servers_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F56: an archive that cannot be stored is a 500 with the reason, not an invalid model."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modelserver.models.archives.archive.unpack", full)

    with pytest.raises(InternalError, match=r"^Failed to save model: x\.mar: No space left on device$"):
        open_archive(make_zip(tmp_path / "x.mar", files()), "x.mar", tmp_path / "work")
