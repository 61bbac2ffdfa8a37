"""The first settings, and the order of all."""

from itertools import groupby

from modelserver.models.settings.key import keys_of
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.serving import ServingSettings


def test_first_settings_and_groups_are_in_order():
    assert [*keys_of(ServingSettings)] == [*KEYS][: len(keys_of(ServingSettings))]

    groups = [group for group, _ in groupby(KEYS.values(), key=lambda key: key.group)]
    assert len(groups) == len(set(groups))
