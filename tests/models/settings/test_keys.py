from dataclasses import fields
from itertools import groupby
from pathlib import Path

import pytest

from modelserver.models.settings.settings import KEYS, NOT_YET, Settings
from modelserver.models.settings.values import convert


def test_settings_have_a_field_per_key():
    names = [field.name for field in fields(Settings)]
    names.remove("sets_allowed_urls")
    assert names == list(KEYS)

    assert set(KEYS) >= NOT_YET
    assert NOT_YET.isdisjoint({"default_service_handler", "model_store", "batch_policy", "number_of_gpu"})


def test_groups_are_in_order():
    """The settings of a group stand together."""
    groups = [group for group, _ in groupby(KEYS.values(), key=lambda key: key.group)]
    assert len(groups) == len(set(groups))


@pytest.mark.parametrize("name", KEYS)
def test_defaults_agree(name):
    assert convert(KEYS[name], KEYS[name].default, Path("/")) == getattr(Settings(), name)


def test_variables_are_named_after_keys_with_exceptions():
    """TS_ and the name in capitals, apart from the marked rows of reference 3.3."""
    assert KEYS["job_queue_size"].env == "TS_JOB_QUEUE_SIZE"
    assert KEYS["token_expiration_min"].env == "TS_TOKEN_EXPIRATION_TIME_MIN"
    assert KEYS["ts_header_key_sequence_id"].env == "TS_HEADER_KEY_SEQUENCE_ID"
    assert KEYS["ts_open_inference_protocol"].env == "TS_OPEN_INFERENCE_PROTOCOL"
    assert KEYS["models"].env is None
    assert KEYS["python"].env is None

    marked = {"models", "model_snapshot", "use_env_allowed_urls", "enable_envvars_config", "use_native_io"}
    marked |= {"system_metrics_cmd", "metric_time_interval", "io_ratio", "vmargs", "plugins_path"}
    marked |= {"python", "version"}

    assert {name for name, key in KEYS.items() if key.env is None} == marked
