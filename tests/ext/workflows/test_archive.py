import json
import zipfile

import pytest

from modelserver.ext.stores.extension import download
from modelserver.ext.workflows.archive import ArchiveReader, WorkflowArchive, find_archive, read_archive
from modelserver.ext.workflows.errors import InvalidWorkflow, WorkflowNotFound
from modelserver.models.archives.sources import locate
from modelserver.models.archives.urls import UrlPolicy

NAMED = {"workflowName": "w", "specFile": "flow.yaml", "handler": "functions.py"}
FILES = {"flow.yaml": "dag: {first: []}", "functions.py": "def first(data, context): ..."}


def pack(path, manifest=None, **files):
    document = {"workflow": NAMED} if manifest is None else manifest
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**FILES, **files}.items():
            archive.writestr(name, content)
        if document is not ...:
            archive.writestr(
                "WAR-INF/MANIFEST.json", document if isinstance(document, str) else json.dumps(document)
            )
    return path


async def _find_file(url, store, workdir):
    located = await locate(url, store, UrlPolicy(), workdir, download=download)
    is_file = located.path.is_file() and located.single is None
    return (located.path, located.downloaded) if is_file else None


async def test_an_archive_is_opened_and_removed(tmp_path):
    pack(tmp_path / "w.war")
    reader = ArchiveReader(_find_file, tmp_path, tmp_path / "work")
    archive = await reader.open("w.war")
    try:
        assert (archive.contents.name, archive.contents.handler) == ("w", "functions.py")
        assert (archive.folder / "functions.py").is_file()
        archive.remove()
        pack(tmp_path / "bad.war", ...)
        with pytest.raises(InvalidWorkflow, match=r"no WAR-INF/MANIFEST\.json"):
            await reader.open("bad.war")
        assert list((tmp_path / "work").iterdir()) == []
    finally:
        reader.close()


def test_a_downloaded_file_goes_with_its_archive(tmp_path):
    folder, file = tmp_path / "unpacked", tmp_path / "w.war"
    contents = read_archive(str(pack(file)), str(folder))
    archive = WorkflowArchive("https://x/w.war", folder, contents, file)
    archive.remove()
    archive.remove()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "Workflow not found at: $"),
        ("../w.war", "Relative path is not allowed in url: ../w.war"),
        ("absent.war", "Workflow not found in workflow store: absent.war"),
        ("m.py", "Workflow not found in workflow store: m.py"),
        ("folder", "Workflow not found in workflow store: folder"),
        ("ftp://x/w.war", "Workflow not found in workflow store: ftp"),
        ("torchvision://x", "Workflow not found in workflow store: torchvision"),
        ("file:///etc/w.war", "allowed_urls"),
        ("http://127.0.0.1/w.war", "not public"),
    ],
)
async def test_other_url_is_refused(tmp_path, url, why):
    (tmp_path / "m.py").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(WorkflowNotFound, match=why):
        await find_archive(url, _find_file, tmp_path, tmp_path / "work")


@pytest.mark.parametrize(
    ("manifest", "files", "why"),
    [
        ("{", {}, "MANIFEST.json: Input data was truncated"),
        ("[]", {}, "MANIFEST.json: Expected `object`"),
        ({"workflow": {**NAMED, "handler": 1}}, {}, "handler"),
        ({}, {}, "no specFile"),
        ({"workflow": {**NAMED, "specFile": "other.yaml"}}, {}, "has no other.yaml"),
        ({"workflow": {**NAMED, "specFile": "/etc/passwd"}}, {}, "Invalid specFile '/etc/passwd'"),
        ({"workflow": {**NAMED, "handler": "../functions.py"}}, {}, "Invalid handler .*'..' is not allowed"),
        (None, {"../x": ""}, "'..' is not allowed"),
        (None, {"flow.yaml": "x" * (4 << 20) + "y"}, "flow.yaml is larger than"),
        (None, {"flow.yaml": "\udcff"}, "not UTF-8"),
    ],
    ids=range(10),
)
def test_invalid_archive_is_refused(tmp_path, manifest, files, why):
    encoded = {name: text.encode("utf-8", "surrogateescape") for name, text in files.items()}
    with pytest.raises(InvalidWorkflow, match=why):
        read_archive(str(pack(tmp_path / "w.war", manifest, **encoded)), str(tmp_path / "unpacked"))
