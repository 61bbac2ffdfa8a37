# Rows read their annotations as texts.
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from modelserver.models.settings.key import Kind, keys_of
from modelserver.models.settings.settings import LIMITS


@dataclass(frozen=True)
class Sample:
    size: int = LIMITS(1 << 20, "Bytes.", minimum=1, maximum=9 << 20)
    pause: float = LIMITS(2.0, "Seconds.", torchserve="60")
    share: float = LIMITS(0.5, "Share.", variable=None)
    noted: bool = LIMITS(False, "Noted.", variable="MODELSERVER_NOTED")
    name: str | None = LIMITS(None, "Name.")
    word: str = LIMITS("hidden", "Word.", secret=True)
    side: Literal["left", "right"] | None = LIMITS(None, "Side.")
    folder: Path | None = LIMITS(None, "Folder.", kind=Kind.FILE)  # noqa: RUF009 - a field
    other: int = 3


def test_rows_stand_at_their_fields():
    """With the default as text, and what the annotation says of values."""
    rows = keys_of(Sample)

    assert Sample() == Sample(1 << 20, 2.0, 0.5, False, None, "hidden", None, None, 3)
    assert {name: (key.name, key.default, key.kind) for name, key in rows.items()} == {
        "size": ("size", "1048576", Kind.INTEGER),
        "pause": ("pause", "2", Kind.NUMBER),
        "share": ("share", "0.5", Kind.NUMBER),
        "noted": ("noted", "false", Kind.BOOLEAN),
        "name": ("name", "", Kind.TEXT),
        "word": ("word", "hidden", Kind.TEXT),
        "side": ("side", "", Kind.CHOICE),
        "folder": ("folder", "", Kind.FILE),
    }
    assert rows["side"].choices == ("left", "right")


def test_secrets_are_not_printed():
    assert "hidden" not in repr(Sample())
    assert "size=1048576" in repr(Sample())


@pytest.mark.parametrize(
    ("name", "variable", "allowed"),
    [
        ("size", "TS_SIZE", "a whole number from 1 to 9437184"),
        ("share", None, "a number"),
        ("noted", "MODELSERVER_NOTED", "true or false"),
    ],
)
def test_what_follows_from_a_row(name, variable, allowed):
    key = keys_of(Sample)[name]
    assert (key.env, key.allowed) == (variable, allowed)
    assert key.is_ours == (name == "noted")
