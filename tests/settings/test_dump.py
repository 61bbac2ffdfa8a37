from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modelserver.settings.key import property_text
from modelserver.settings.load import given_properties, load_settings
from modelserver.settings.properties import dump

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = r"""
inference_address=http://127.0.0.1:18999
enable_envvars_config=true
load_models=a.mar,b=c.mar
models={"m": {"1.0": {"batchSize": 8, "minWorkers": 2, "runtimeType": "python"}}}
allowed_urls=https://a/.*,https://b/\\d+
blacklist_env_vars=SECRET_.*
drain_timeout=1.5
job_queue_size=7
frontend_processes=auto
isolate_failures=false
model_snapshot={"models": {}}
keystore_pass=secret
"""


def test_written_settings_are_read_back(tmp_path: Path) -> None:
    """Every setting that was given, wherever, has the same value when it is read from what was written;
    the state and secrets are left out.
    """
    (tmp_path / "store").mkdir()
    (tmp_path / "given.properties").write_text(CONFIG)
    flags = {"ts_config": "given.properties", "model_store": "store"}
    loaded = load_settings(flags, {"TS_JOB_QUEUE_SIZE": "9"}, tmp_path)
    (tmp_path / "written.properties").write_text(dump(given_properties(loaded)))
    again = load_settings({"ts_config": "written.properties"}, {}, tmp_path)

    assert again.settings.job_queue_size == 9
    assert again.settings == replace(
        loaded.settings, model_snapshot=None, keystore_pass=again.settings.keystore_pass
    )
    assert "secret" not in (tmp_path / "written.properties").read_text()


def test_what_nobody_set_is_not_written(tmp_path: Path) -> None:
    """Defaults may change with the server's version."""
    assert given_properties(load_settings({}, {}, tmp_path)) == {}


def test_texts() -> None:
    """A value that is not set is empty, as an empty table is."""
    assert [property_text(value) for value in (None, True, (), {}, 3)] == ["", "true", "", "", "3"]
