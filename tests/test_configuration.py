import re

from docs.configuration import reference

from modelserver.models.settings.settings import KEYS, NOT_YET


def test_every_key_has_one_row():
    assert re.findall(r"(?m)^\| `([a-z_]+)` \|", reference()) == list(KEYS)


def test_every_row_has_five_cells():
    """A bar in a default (as in that of allowed_urls) does not end its cell."""
    rows = re.findall(r"(?m)^\| `[a-z_]+` \|.*$", reference())
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_keys_without_effect_say_so():
    for name, row in re.findall(r"(?m)^\| `([a-z_]+)` \|(.*)$", reference()):
        silent = name in NOT_YET or KEYS[name].is_for_java
        assert silent == bool(re.search(r"\*(No effect|No effect yet)\.\*", row)), name
