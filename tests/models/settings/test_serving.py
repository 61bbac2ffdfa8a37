"""The first settings, and the order of all."""

from __future__ import annotations

from itertools import groupby

from modelserver.models.settings.key import keys_of
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.serving import ServingSettings


def test_they_are_the_first() -> None:
    """The page and the file begin with addresses and models."""
    assert [*keys_of(ServingSettings)] == [*KEYS][: len(keys_of(ServingSettings))]


def test_the_rows_of_a_group_stand_together() -> None:
    """Each group is one section of the page and of the file."""
    groups = [group for group, _ in groupby(KEYS.values(), key=lambda key: key.group)]

    assert len(groups) == len(set(groups))
