"""The page docs/migrating.md: made from the code and the recorded comparison, and current."""

import re
from pathlib import Path

import pytest
from docs import migrating
from tests.models.settings.torchserve_configurations import CONFIGURATIONS

from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS, NOT_YET
from modelserver.run.cli import build_parser
from modelserver.surface.auth.policy import wants_tokens
from modelserver.tools.container import __main__ as container

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"


@pytest.fixture(scope="module")
def guide():
    return migrating.guide()


def test_the_counts_add_up(guide):
    counted = migrating.count()
    requests, alike, nearly = counted.total()

    assert f"{requests} requests were sent" in guide
    assert requests > 200
    assert 0 < alike < alike + nearly < requests
    assert sum(counted.by_rule.values()) >= requests - alike


def test_the_tests_that_it_names_are_there(guide):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", guide)

    assert len(named) > 10
    for file, name in named:
        text = (PAGE.parents[1] / file).read_text(encoding="utf-8")
        assert re.search(rf"(?m)^(async )?def {name}\(", text), f"{file}::{name}"


def test_keys_without_effect_are_not_called_same(guide):
    rows = dict(re.findall(r"(?m)^\| `([a-z_]+)` \| ([a-z ]+) \|", guide))

    silent = {name for name in rows if name in NOT_YET or KEYS[name].is_for_java}
    assert [name for name in silent if rows[name] in {"same", "better"}] == []
    assert [name for name in rows.keys() - silent if rows[name] in {"not yet", "no effect"}] == []


@pytest.mark.parametrize(
    ("endpoint", "there"),
    [
        (migrating.Endpoint("inference", "GET", "/ping"), True),
        (migrating.Endpoint("inference", "POST", "/predictions/{model}/{version}/{rest}"), True),
        (migrating.Endpoint("inference", "GET", "/nowhere"), False),
        (migrating.Endpoint("management", "PUT", "/models"), False),
        (migrating.Endpoint("management", "DELETE", "/workflows/{workflow}"), True),
    ],
    ids=range(5),
)
def test_endpoints_are_looked_for(endpoint, there):
    """The table says *not yet* of what no listener routes, and only of that."""
    assert migrating.is_there(endpoint) is there


# The args of kubernetes/Helm of TorchServe 0.12.
_FLAGS = "--model-store {shared}/model-store/ --ts-config {shared}/config/config.properties"
HELM = ["torchserve", "--start", *_FLAGS.split()]


def test_torchserves_chart_and_image_start_here(tmp_path):
    """The chart's command line is understood, and so is the image's configuration, with a warning for each
    key that has no effect; its store of workflows need not be there.
    """
    store, config = tmp_path / "model-store", tmp_path / "config" / "config.properties"
    store.mkdir()
    config.parent.mkdir()
    text = CONFIGURATIONS["docker/config.properties"]
    config.write_text(text.replace("/home/model-server", str(tmp_path)))
    flags, environment = container.prepare([word.format(shared=tmp_path) for word in HELM], {})
    parsed = build_parser().parse_args(flags)
    loaded = load_settings(
        {"ts_config": parsed.ts_config, "model_store": parsed.model_store}, environment, tmp_path
    )

    assert (parsed.start, parsed.foreground) == (True, True)
    assert (loaded.settings.job_queue_size, loaded.settings.model_store) == (1000, store)
    assert not loaded.settings.inference_address.is_loopback
    assert wants_tokens(loaded.settings, environment)
    assert not (tmp_path / "wf-store").exists()
    assert [warning.partition(" ")[0] for warning in loaded.warnings] == ["number_of_netty_threads"]
