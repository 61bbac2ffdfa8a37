import errno
import os

import pytest

from modelserver.ext.parking import stored as module
from modelserver.ext.parking.history import History, StoredUse
from modelserver.ext.parking.needs import Need, Needs

NEED = Need(26 << 20, 0.3)
# Both files of the server, and a value of each.
FILES = pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(Needs, "needs.json", NEED), (History, "history.json", [StoredUse(1e9, 10.0, 3.0)])],
)


@FILES
def test_values_outlive_the_server(tmp_path, kind, name, value):
    first = kind(tmp_path)
    first.load()
    assert first.get("m/1.0") is None
    first.learn("m/1.0", value)
    first.save()
    second = kind(tmp_path)
    second.load()

    assert second.get("m/1.0") == value
    assert os.listdir(tmp_path) == [name]


@FILES
@pytest.mark.parametrize("content", [b"", b"[1]", b'{"m": {"memory": "much"}}', b'{"m": [["a"]]}', b"\xff"])
def test_damaged_file_counts_as_empty(tmp_path, content, caplog, kind, name, value):
    (tmp_path / name).write_bytes(content)
    values = kind(tmp_path)
    values.load()
    values.learn("m/1.0", value)
    values.save()

    assert "cannot be read" in caplog.text
    again = kind(tmp_path)
    again.load()
    assert again.get("m/1.0") == value


@FILES
def test_full_disk_is_reported_once(tmp_path, caplog, monkeypatch, kind, name, value):
    """What is known stays known, and is written when there is space again."""
    values = kind(tmp_path)
    values.learn("old", value)
    values.save()
    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_file", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        for key in ("a", "b"):
            values.learn(key, value)
            values.save()
    assert caplog.text.count("cannot be kept") == 1
    assert values.get("b") == value
    values.save()
    again = kind(tmp_path)
    again.load()

    assert [again.get(key) for key in ("old", "a", "b")] == [value] * 3


def test_folder_that_is_gone_is_reported(tmp_path, caplog):
    needs = Needs(tmp_path / "absent")
    needs.learn("a", NEED)
    needs.save()

    assert caplog.text.count("What models need cannot be kept") == 1


def test_number_of_models_is_bounded(tmp_path):
    values = module.StoredValues("Values", "v.json", Need, 2, tmp_path)
    for name in ("a", "b", "a", "c"):
        values.learn(name, NEED)

    assert [values.get(name) for name in "abc"] == [NEED, None, NEED]
