import gc
import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.snapshots import files
from modelserver.models.settings.properties import parse

NOON = datetime(2026, 5, 4, 12, 0, 0, 123456)  # noqa: DTZ001 - names carry local time
PROPERTIES = {"model_store": "/srv/models", "job_queue_size": "7"}


def state(name):
    return {"models": {name: {"1.0": {"marName": f"{name}.mar", "minWorkers": 1, "maxWorkers": 1}}}}


def folder(path, now=NOON):
    return files.SnapshotFolder(path / "config", PROPERTIES, lambda: now)


def write(snapshots, model):
    return snapshots.write("snapshot", state(model))


def models(snapshots):
    result = snapshots.newest()
    return [] if result is None else [model.name for model in result[1].models]


def test_file_has_a_name_by_time_and_the_state(tmp_path):
    """A file is named by time and kind, is for its owner only, and is Java properties with the state."""
    path = folder(tmp_path).write("startup", state("a"))
    values = parse(path.read_bytes())

    assert path.name == "20260504120000123-startup.cfg"
    assert path.stat().st_mode & 0o777 == 0o600
    assert {key: values[key] for key in PROPERTIES} == PROPERTIES
    assert path.name in values["model_snapshot"]
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_content_leaves_no_garbage():
    document = {"models": {"caf\xe9": {"1.0": {"marName": "a.mar", "weights": [1.5, None]}}}}
    files.file_content(PROPERTIES, document)
    gc.collect()
    content = files.file_content(PROPERTIES, document)

    assert gc.collect() == 0
    assert parse(content)["model_snapshot"] == json.dumps(document, indent=2)


def test_clock_that_goes_back(tmp_path):
    """What is written later has the later name, in this server and the next (F35)."""
    write(folder(tmp_path), "a")
    write(folder(tmp_path, NOON - timedelta(days=1)), "b")
    back = folder(tmp_path, NOON - timedelta(days=2))
    write(back, "c")

    assert write(back, "d").name == "20260504120000126-snapshot.cfg"
    assert models(back) == ["d"]


def test_stamp_that_is_no_time(tmp_path):
    snapshots = folder(tmp_path)
    first = write(snapshots, "a")
    first.rename(first.with_name("99999999999999998-snapshot.cfg"))
    write(folder(tmp_path), "b")

    assert models(folder(tmp_path)) == ["b"]


def test_strange_files_are_ignored(tmp_path):
    """What is no snapshot neither hinders the start nor is deleted (reference 17)."""
    snapshots = folder(tmp_path)
    write(snapshots, "a")
    for name in ("notes.txt", "x-snapshot.cfg", "20990101000000000-snapshot.cfg.bak"):
        (tmp_path / "config" / name).write_text("?")
    write(snapshots, "b")

    assert models(snapshots) == ["b"]
    assert len(os.listdir(tmp_path / "config")) == 5

    (tmp_path / "config" / "20990101000000000-snapshot.cfg").mkdir()
    (tmp_path / "config" / "20980101000000000-snapshot.cfg").write_text("model_snapshot=\\uXXXX\n")
    assert models(snapshots) == ["b"]


def test_old_files_go(tmp_path):
    """The newest 50 are kept, and what a killed server was writing is swept away."""
    snapshots = folder(tmp_path)
    for number in range(files.MOST_FILES + 3):
        write(snapshots, f"m{number}")
    (tmp_path / "config" / ".20260504120000000-snapshot.cfg.part").write_text("half")
    write(snapshots, "last")

    names = sorted(os.listdir(tmp_path / "config"))
    assert len(names) == files.MOST_FILES
    assert names[-1] == "20260504120000176-snapshot.cfg"


def test_file_broken_at_any_byte_is_skipped(tmp_path):
    """One that is cut or changed at any byte gives way to the one before, or still means the same (F54)."""
    snapshots = folder(tmp_path)
    write(snapshots, "good")
    newest = write(snapshots, "newer")
    whole = newest.read_bytes()
    passed_over = 0
    for position in range(len(whole)):
        changed = whole[:position] + bytes([whole[position] ^ 0x01]) + whole[position + 1 :]
        for data in (whole[:position], changed):
            newest.write_bytes(data)
            result = models(snapshots)
            assert result in (["good"], ["newer"]), (position, data)
            passed_over += result == ["good"]
        newest.write_bytes(whole[:position])
        assert models(snapshots) == ["good"], position

    assert passed_over > 1.9 * len(whole)


@pytest.mark.parametrize(("module", "step"), [(os, "open"), (os, "fsync"), (Path, "replace")])
def test_a_write_that_fails_keeps_the_last_state(tmp_path, monkeypatch, module, step):
    """Whatever step fails, the last state stays and no part of the new one is seen (F54, F56)."""
    snapshots = folder(tmp_path)
    write(snapshots, "good")
    with monkeypatch.context() as patch:
        patch.setattr(module, step, Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            write(snapshots, "new")

    assert models(snapshots) == ["good"]
    assert len(os.listdir(tmp_path / "config")) == 1


def test_file_of_torchserve_is_read():
    """As TorchServe 0.12 writes it, without a checksum and whatever else stands in it."""
    text = (
        r'{\n  "name"\: "20261121080646318-shutdown.cfg",\n  "modelCount"\: 1,\n  "created"\: 1795248406318,'
        r'\n  "models"\: {\n    "echo"\: {\n      "1.0"\: {\n        "defaultVersion"\: true,'
        r'\n        "marName"\: "echo.mar",\n        "minWorkers"\: 1,\n        "maxWorkers"\: 1,'
        r'\n        "batchSize"\: 3,\n        "maxBatchDelay"\: 70,\n        "responseTimeout"\: 120,'
        r'\n        "startupTimeout"\: 120,\n        "runtimeType"\: "python"\n      }\n    }\n  }\n}'
    )
    file = f"#Saving snapshot\ntsConfigFile=c.properties\nmodel_snapshot={text}\nversion=0.12.0\n"
    ((echo,), _) = files.parse_file(file.encode())

    assert (echo.name, echo.version, echo.default) == ("echo", "1.0", True)
    assert (echo.registration.batch_size, echo.registration.max_batch_delay) == (3, 70)

    content = files.file_content({}, state("a"))

    assert [m.name for m in files.parse_file(content.partition(b"\n")[2])[0]] == ["a"]
    with pytest.raises(ConfigError, match="has no model_snapshot"):
        files.parse_file(b"model_store=x\n")


# TorchServe's rules of snapshots, for its defaults (reference 17)


def test_the_newest_whole_file_is_the_configuration(tmp_path):
    assert files.newest_configuration(tmp_path / "config") is None
    folder = files.SnapshotFolder(tmp_path / "config", {"job_queue_size": "7"})
    first, last = (folder.write("snapshot", {"models": {}}) for _ in range(2))
    (tmp_path / "config" / "zzz.cfg").write_text("model_snapshot={}")
    assert files.newest_configuration(tmp_path / "config") == last

    last.write_bytes(last.read_bytes().replace(b"7", b"8"))
    assert files.newest_configuration(tmp_path / "config") == first
