"""``docs/cluster.md``: the settings, options and variables that it explains are those that there are."""

import re

import pytest
from tests.deploy.manifests import ROOT

from modelserver.engine.demand import Demand
from modelserver.ext.cluster.node import archives
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.settings import CLUSTER, KEYS, Settings

_PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
_SECTION = _PAGE.partition("\n## Settings\n")[2].partition("\n## ")[0]
_OWN = {name for name, key in KEYS.items() if key.group == CLUSTER}


def rows():
    result = re.findall(r"(?m)^\| `(\w+)` \| ([^|]*) \|", _SECTION)
    return {key: default.strip(" `s") for key, default in result}


def test_every_setting_is_explained():
    named = re.findall(r"(?m)^\| (`\w+`(?:, `\w+`)*) \|", _SECTION)
    assert {key for row in named for key in re.findall(r"\w+", row)} == _OWN


@pytest.mark.parametrize(
    "key", ["worker_launcher", "worker_address", "placement_timeout", "worker_lost_timeout"]
)
def test_defaults_are_those_of_the_settings(key):
    default = getattr(Settings(), key)
    assert rows()[key] == (f"{default:g}" if isinstance(default, float) else default)


def test_the_pages_options_of_a_model_can_be_used():
    (example,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", _SECTION)
    request, warnings = parse_model_config(example)

    assert warnings == []
    assert request.resources == Demand(4, 1, 8_000_000_000, {"nvme": 1}, {"zone": "a"})
    assert (request.placement, request.idempotent) == ("spread", True)


def test_variables_of_nodes_are_explained():
    named = dict(re.findall(r"(?m)^\| `(MODELSERVER_\w+)` \| ([^|]*) \|", _PAGE))

    assert {archives.ROOT, archives.LIMIT, LOCAL_SOCKET} < set(named)
    assert named[archives.LIMIT].startswith(str(archives.DEFAULT_LIMIT))
