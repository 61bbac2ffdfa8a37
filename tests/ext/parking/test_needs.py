from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.ext.parking import needs as module
from modelserver.ext.parking.needs import FILE, Need, Needs

if TYPE_CHECKING:
    from pathlib import Path

NEED = Need(26 << 20, 0.3)


def test_needs_outlive_the_server(tmp_path: Path) -> None:
    first = Needs(tmp_path)
    first.load()
    assert first.get("m/1.0") is None
    first.learn("m/1.0", NEED)
    first.save()
    second = Needs(tmp_path)
    second.load()

    assert second.get("m/1.0") == NEED


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"m": {"memory": "much"}}', b"\xff"])
def test_broken_file_counts_as_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    needs = Needs(tmp_path)
    needs.load()
    needs.learn("m/1.0", NEED)
    needs.save()

    assert "What models need cannot be read" in caplog.text
    again = Needs(tmp_path)
    again.load()
    assert again.get("m/1.0") == NEED


def test_full_disk_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    needs = Needs(tmp_path / "absent")
    for name in ("a", "b"):
        needs.learn(name, NEED)
        needs.save()

    assert caplog.text.count("What models need cannot be kept") == 1
    assert needs.get("b") == NEED


def test_number_of_models_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    needs = Needs(tmp_path)
    for name in ("a", "b", "a", "c"):
        needs.learn(name, NEED)

    assert [needs.get(name) for name in "abc"] == [NEED, None, NEED]
