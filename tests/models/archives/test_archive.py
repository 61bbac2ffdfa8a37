import errno
import json
import re
import zipfile
from dataclasses import replace

import pytest

from modelserver.errors import InternalError, InvalidModel
from modelserver.models.archives.archive import nameless, open_archive
from modelserver.models.archives.manifest import Manifest


def files(config="minWorkers: 1\n", **model):
    fields = {"modelName": "noop", "handler": "handler.py", **model}
    content = {"handler.py": b"def handle(data, context): return data"}
    if config is not None:
        fields["configFile"] = "model-config.yaml"
        content["model-config.yaml"] = config.encode()
    content["MAR-INF/MANIFEST.json"] = json.dumps({"runtime": "python", "model": fields}).encode()
    return content


def make_zip(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def make_folder(path, content):
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_file_is_unpacked_and_described(tmp_path):
    path = make_zip(tmp_path / "noop.mar", files())

    archive = open_archive(path, "noop.mar", tmp_path / "work")

    assert archive.url == "noop.mar"
    assert archive.model_dir.parent == tmp_path / "work"
    assert (archive.model_dir / "handler.py").is_file()
    assert archive.manifest.model_name == "noop"
    assert archive.config_text == "minWorkers: 1\n"
    assert archive.temporary

    archive.close()
    archive.close()

    assert list((tmp_path / "work").iterdir()) == []
    assert path.exists()


def test_removing_gives_back_the_download_and_what_is_held(tmp_path):
    path = make_zip(tmp_path / "noop.mar", files())

    opened = open_archive(path, "https://x/noop.mar", tmp_path / "work")
    replace(opened, downloaded=path).remove()

    assert not path.exists()

    archive = open_archive(make_zip(tmp_path / "x.mar", files()), "x.mar", tmp_path / "work")
    released = []
    archive.held.append(lambda: released.append("environment"))
    archive.remove()
    archive.close()

    assert released == ["environment"]


def test_directory_is_used_in_place(tmp_path):
    folder = make_folder(tmp_path / "noop", files())

    archive = open_archive(folder, "noop", tmp_path / "work")
    archive.remove()

    assert archive.model_dir == folder
    assert not archive.temporary
    assert (folder / "handler.py").exists()
    assert not (tmp_path / "work").exists()

    folder = make_folder(tmp_path / "made", files())

    open_archive(folder, "torchvision://x", tmp_path, temporary=True).close()

    assert not folder.exists()


def test_only_folder_of_a_directory_is_used(tmp_path):
    make_folder(tmp_path / "outer" / "inner", files())

    assert open_archive(tmp_path / "outer", "outer", tmp_path).model_dir == tmp_path / "outer" / "inner"

    folder = make_folder(tmp_path / "m", {"MAR-INF/MANIFEST.json": b'{"model": {"modelName": "m"}}'})

    assert open_archive(folder, "m", tmp_path).manifest.model_name == "m"

    make_folder(tmp_path / "elsewhere", files())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "inner").symlink_to(tmp_path / "elsewhere")

    opened = open_archive(tmp_path / "other", "other", tmp_path)

    assert opened.model_dir == tmp_path / "other"
    assert opened.manifest.missing


def test_archive_without_manifest_needs_a_name(tmp_path):
    """F59: the model's name is not guessed; the error names the archive and the reason."""
    archive = open_archive(make_zip(tmp_path / "x.mar", {"handler.py": b""}), "x.mar", tmp_path / "work")

    assert archive.manifest == Manifest(missing=True)
    assert nameless(archive.url, archive.manifest).message == (
        "Model name is not defined. Archive 'x.mar': MAR-INF/MANIFEST.json is missing, "
        "and the registration gives no model_name."
    )

    content = {"MAR-INF/MANIFEST.json": b"{}"}

    archive = open_archive(make_zip(tmp_path / "x.mar", content), "x.mar", tmp_path / "work")
    message = nameless(archive.url, archive.manifest).message

    assert "'x.mar': MAR-INF/MANIFEST.json has no modelName" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"MAR-INF/MANIFEST.json": b"{"}, r"^Failed to parse signature\.json\. .* Archive: 'x\.mar'\.$"),
        ({"MAR-INF/MANIFEST.json": b'{"runtime": "java"}'}, r"^Runtime is not defined.* Archive: 'x"),
        ({"MAR-INF/MANIFEST.json": bytes(5 << 20)}, "larger than"),
        (files(None, configFile="none.yaml"), "configFile 'none.yaml'"),
        (files(None, configFile="MAR-INF"), "configFile 'MAR-INF'"),
        ({**files(), "model-config.yaml": b"\xff"}, "not UTF-8"),
        (files(handler="../up.py:go"), r"^Invalid handler '\.\./up\.py:go': .* Archive: 'x\.mar'\.$"),
        (files(handler="os:system"), "os is a standard module of Python"),
        (files(handler="os.path:join"), "os is a standard module of Python"),
        (files(handler="subprocess.py:run"), "subprocess is a standard module of Python"),
    ],
    ids=range(10),
)
def test_unusable_content_leaves_nothing(tmp_path, content, message):
    """F59: content that cannot be served is a 400, and nothing that was unpacked stays."""
    path = make_zip(tmp_path / "x.mar", content)

    with pytest.raises(InvalidModel) as caught:
        open_archive(path, "x.mar", tmp_path / "work")

    assert re.search(message, caught.value.message)
    assert "x.mar" in caught.value.message
    assert list((tmp_path / "work").iterdir()) == []


def test_file_that_is_no_zip_or_cannot_be_stored(tmp_path, monkeypatch):
    """F56: an archive that cannot be stored is a 500 with the reason, not an invalid model."""
    (tmp_path / "dummy.mar").write_text("dummy")

    with pytest.raises(InvalidModel, match=r"'dummy\.mar': it is neither a zip file"):
        open_archive(tmp_path / "dummy.mar", "dummy.mar", tmp_path / "work")
    assert (tmp_path / "dummy.mar").exists()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modelserver.models.archives.archive.unpack", full)

    with pytest.raises(InternalError, match=r"^Failed to save model: x\.mar: No space left on device$"):
        open_archive(make_zip(tmp_path / "x.mar", files()), "x.mar", tmp_path / "work")


def test_own_file_may_be_named_like_a_python_module(tmp_path):
    """F59: a file of the archive is meant when it shares its name with a module of Python."""
    content = {**files(handler="code.py:handle"), "code.py": b""}

    archive = open_archive(make_zip(tmp_path / "x.mar", content), "x.mar", tmp_path / "work")

    assert archive.manifest.handler == "code.py:handle"
    with pytest.raises(InvalidModel, match=r"standard module of Python\. Archive: 'x\.mar'\.$"):
        archive.check_handler("os:system")
