"""The page docs/migrating.md: made from the code and the recorded comparison, and current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs import migrating

from modelserver.cli import build_parser
from modelserver.settings.keys import KEYS, NOT_YET

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"


def test_the_page_is_current() -> None:
    """``python -m docs.migrating > docs/migrating.md`` was run after the last change."""
    assert PAGE.read_text(encoding="utf-8") == migrating.guide()


def test_the_counts_add_up() -> None:
    """Every compared request is the same, nearly so, or different, and more than 200 were compared."""
    counted = migrating.count()
    requests, alike, nearly = counted.total()

    assert f"{requests} requests were sent" in migrating.guide()
    assert requests > 200
    assert 0 < alike < alike + nearly < requests
    assert sum(counted.by_rule.values()) >= requests - alike


def test_every_key_of_torchserve_is_accepted() -> None:
    """What a config.properties of TorchServe may hold is known here, and has a row."""
    assert [name for name in migrating.KEYS_OF_TORCHSERVE if name not in KEYS] == []
    assert len(set(migrating.KEYS_OF_TORCHSERVE)) == len(migrating.KEYS_OF_TORCHSERVE)


def test_every_flag_of_torchserve_is_accepted() -> None:
    """The parser knows each, and the page refuses none."""
    known = {option for action in build_parser()._actions for option in action.option_strings}

    assert [flag for flag in migrating.FLAGS if flag not in known] == []


def test_other_defaults_are_other() -> None:
    """Where the page says that a default differs from TorchServe's, it does."""
    assert [name for name, theirs in migrating.OTHER_DEFAULTS.items() if KEYS[name].default == theirs] == []


def test_keys_without_effect_are_not_called_same() -> None:
    """The table tells what is not built yet, and what is only for a Java server."""
    rows = dict(re.findall(r"(?m)^\| `([a-z_]+)` \| ([a-z ]+) \|", migrating.guide()))

    silent = {name for name in rows if name in NOT_YET or KEYS[name].category == "N"}
    assert [name for name in silent if rows[name] in {"same", "better"}] == []
    assert [name for name in rows.keys() - silent if rows[name] in {"not yet", "no effect"}] == []


@pytest.mark.parametrize(
    ("endpoint", "there"),
    [
        (migrating.Endpoint("inference", "GET", "/ping", "/ping"), True),
        (migrating.Endpoint("inference", "POST", "/x", "/predictions/m/1.0/v1/chat"), True),
        (migrating.Endpoint("inference", "GET", "/x", "/nowhere"), False),
        (migrating.Endpoint("management", "PUT", "/x", "/models"), False),
        (migrating.Endpoint("management", "DELETE", "/x", "/workflows/w"), True),
    ],
    ids=range(5),
)
def test_endpoints_are_looked_for(endpoint: migrating.Endpoint, there: bool) -> None:
    """The table says *not yet* of what no listener routes, and only of that."""
    assert migrating.is_there(endpoint) is there
