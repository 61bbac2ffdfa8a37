from dataclasses import replace

from tests.models.settings.conftest import load

from modelserver.models.settings.load import LoadedSettings, explain, load_settings, set_properties
from modelserver.models.settings.properties import dump
from modelserver.models.settings.settings import KEYS, Settings

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


def test_written_settings_are_read_back(tmp_path):
    """Every given setting has the same value when it is read back; state and secrets are left out."""
    (tmp_path / "store").mkdir()
    (tmp_path / "given.properties").write_text(CONFIG)
    flags = {"ts_config": "given.properties", "model_store": "store"}
    loaded = load_settings(flags, {"TS_JOB_QUEUE_SIZE": "9"}, tmp_path)
    (tmp_path / "written.properties").write_text(dump(set_properties(loaded)))
    again = load_settings({"ts_config": "written.properties"}, {}, tmp_path)

    assert again.settings.job_queue_size == 9
    assert again.settings == replace(
        loaded.settings, model_snapshot=None, keystore_pass=again.settings.keystore_pass
    )
    assert "secret" not in (tmp_path / "written.properties").read_text()


def test_no_settings_are_all_defaults(tmp_path):
    loaded = load(tmp_path)
    assert loaded == LoadedSettings(Settings(), dict.fromkeys(KEYS, "default"), (), None)
    assert set_properties(loaded) == {}


def test_explain_shows_every_key_and_hides_secrets(tmp_path):
    """A line per key with its source; the keystore's password stays hidden (F68)."""
    loaded = load(tmp_path, "keystore_pass=hunter2\njob_queue_size=5", {"load_models": "a.mar,b=c.mar"})
    lines = explain(loaded).splitlines()
    path = tmp_path / "config.properties"
    assert lines[0] == f"config file: {path}"
    assert len(lines) == len(KEYS) + 1
    assert f"job_queue_size = 5 ({path})" in lines
    assert "load_models = a.mar,b=c.mar (flag --models)" in lines
    assert f"keystore_pass = ******** ({path})" in lines
    assert "inference_address = http://127.0.0.1:8080 (default)" in lines
    assert "enable_model_api = true (default)" in lines
    assert "allowed_urls = file://.*|http(s)?://.* (default)" in lines
    assert "models =  (default)" in lines
    assert "hunter2" not in explain(loaded) + repr(loaded)
