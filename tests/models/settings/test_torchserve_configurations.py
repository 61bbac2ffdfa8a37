"""The configuration files that TorchServe's repository has."""

import os
import re

import pytest
from tests.models.settings.torchserve_configurations import CONFIGURATIONS, ENVIRONMENT, REFUSED

from modelserver.errors import ConfigError
from modelserver.ext.snapshots.document import parse_snapshot
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS

# Keys in TorchServe's own files that no version of it reads, or that only older ones read.
UNKNOWN = "NUM_WORKERS metrics_format min_workers max_workers model_api_enabled model_control_mode"


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "frontend" / "server"
    for folder in ("resources", "../resources", "src/test/resources"):
        (home / folder).mkdir(parents=True)
        for name in ("key.pem", "certs.pem"):
            (home / folder / name).touch()
    (tmp_path / "store").mkdir()
    return home


def load(home, text):
    (home / "config.properties").write_text(text)
    return load_settings({"model_store": str(home / "../../store")}, ENVIRONMENT, home)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("defaults", ["modelserver", "torchserve"])
def test_a_server_starts_with_each_of_them(home, name, defaults):
    text = CONFIGURATIONS[name]
    loaded = load(home, f"compat_defaults={defaults}\n{text}")

    parse_snapshot(loaded.settings.model_snapshot or "{}")
    unknown = {key for key in re.findall(r"(?m)^(\w+)=", text) if key not in KEYS}
    assert unknown <= set(UNKNOWN.split())
    for key in unknown:
        assert sum(line.startswith(f"{key} is not a known setting") for line in loaded.warnings) == 1
    if "workflow_store" in text:
        assert not os.path.exists(str(loaded.settings.workflow_store))


@pytest.mark.parametrize("name", REFUSED)
def test_what_torchserve_cannot_read_is_refused_by_name(home, name):
    """A port that is a URL or above 65535 stops both servers; here the line says which and what is needed."""
    with pytest.raises(ConfigError, match=re.escape(f"Invalid configuration: {REFUSED[name]}: ")):
        load(home, REFUSED[name])
