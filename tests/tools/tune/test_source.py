import pytest
from tests.tools.tune.conftest import HANDLER

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.tune.command import CONFIG
from modelserver.tools.tune.source import open_source


def test_a_model_is_opened_by_path_and_from_the_store(work):
    places = [("sleeper.mar", None), ("sleeper.mar", work), (str(work / "sleeper.mar"), None)]
    for name, (model, store) in enumerate(places):
        source = open_source(model, store, work / f"dir{name}")
        assert (source.name, source.manifest.handler) == ("sleeper", "sleeper.py")
        assert (source.store / source.url / "sleeper.py").is_file()
        assert "responseTimeout: 60" in (source.config_text or "")


def test_a_folder_is_used_in_place_and_a_network_of_torchvision_is_written(work):
    build_archive(ArchiveConfig("plain", "sleeper.py", "1.0", export_path=work, archive_format="no-archive"))
    folder = open_source("plain", None, work / "one")
    network = open_source("torchvision://resnet18?weights=random", None, work / "two")

    assert (folder.store, folder.url) == (work, "plain")
    assert (network.name, network.manifest.handler) == ("resnet18", "image_classifier")
    assert "arch: resnet18" in (network.config_text or "")


@pytest.mark.parametrize("has_one", [True, False])
def test_the_finished_archive_has_the_new_file(has_one, work):
    (work / "old.yaml").write_text("batchSize: 3\n")
    more = {"runtime": "python3", "config_file": "old.yaml" if has_one else None}
    build_archive(ArchiveConfig("plain", "sleeper.py", "2.5", export_path=work, **more))
    (work / "new" / CONFIG).parent.mkdir()
    (work / "new" / CONFIG).write_text("batchSize: 7\n")
    source = open_source("plain.mar", None, work / "before")

    archive = source.pack(work / "new" / CONFIG, work / "new")

    assert archive == work / "new" / "plain.mar"
    packed = open_source(str(archive), None, work / "after")
    assert packed.config_text == "batchSize: 7\n"
    assert packed.manifest.config_file == ("old.yaml" if has_one else CONFIG)
    assert (packed.manifest.model_version, packed.manifest.runtime) == ("2.5", "python3")
    assert (packed.store / packed.url / "sleeper.py").read_text() == HANDLER
