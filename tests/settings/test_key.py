"""One row for each setting, at its field."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from modelserver.settings.key import LIMITS, Kind, keys_of, setting


@dataclass(frozen=True)
class Sample:
    """Settings of several kinds, and a field that is none."""

    size: int = setting(1 << 20, LIMITS, Kind.INTEGER, "Bytes.", minimum=1, maximum=9 << 20)
    pause: float = setting(2.0, LIMITS, Kind.NUMBER, "Seconds.", torchserve="60")
    share: float = setting(0.5, LIMITS, Kind.NUMBER, "Share.", variable=None)
    told: bool = setting(False, LIMITS, Kind.BOOLEAN, "Told.", variable="MODELSERVER_TOLD")
    name: str | None = setting(None, LIMITS, Kind.TEXT, "Name.")
    word: str = setting("hidden", LIMITS, Kind.TEXT, "Word.", secret=True)
    other: int = 3


def test_a_field_has_its_default_and_its_row() -> None:
    """The row knows its name, and the default as a file has it; other fields have none."""
    assert Sample() == Sample(1 << 20, 2.0, 0.5, False, None, "hidden", 3)
    assert {name: (key.name, key.default) for name, key in keys_of(Sample).items()} == {
        "size": ("size", "1048576"),
        "pause": ("pause", "2"),
        "share": ("share", "0.5"),
        "told": ("told", "false"),
        "name": ("name", ""),
        "word": ("word", "hidden"),
    }


def test_secrets_are_not_shown() -> None:
    """A log of the settings holds no passwords."""
    assert "hidden" not in repr(Sample())
    assert "size=1048576" in repr(Sample())


@pytest.mark.parametrize(
    ("name", "variable", "allowed"),
    [
        ("size", "TS_SIZE", "a whole number from 1 to 9437184"),
        ("share", None, "a number"),
        ("told", "MODELSERVER_TOLD", "true or false"),
    ],
)
def test_what_follows_from_a_row(name: str, variable: str | None, allowed: str) -> None:
    """The variable, and the values in words."""
    key = keys_of(Sample)[name]

    assert (key.env, key.allowed) == (variable, allowed)
    assert key.is_ours == (name == "told")
