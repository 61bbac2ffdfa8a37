import re
from unittest.mock import Mock

import pytest
from tests.models.settings.conftest import load, refusal_of

from modelserver.errors import ConfigError
from modelserver.models.settings.values import ModelToLoad


def test_environment_wins_over_flags_and_file(tmp_path):
    """The order of reference 2.4, with the source of each value."""
    text = "enable_envvars_config=true\njob_queue_size=1\nmax_request_size=1\nload_models=file.mar\n"
    flags = {"load_models": "flag.mar", "disable_token_authorization": True}
    environ = {"TS_LOAD_MODELS": "env.mar", "TS_MAX_REQUEST_SIZE": "2", "TS_MODELS": "ignored"}
    loaded = load(tmp_path, text, flags, environ)
    result, sources = loaded.settings, loaded.sources
    assert result.load_models == (ModelToLoad("env.mar"),)
    assert sources["load_models"] == "environment TS_LOAD_MODELS"
    assert (result.max_request_size, sources["max_request_size"]) == (2, "environment TS_MAX_REQUEST_SIZE")
    assert (result.job_queue_size, sources["job_queue_size"]) == (1, str(tmp_path / "config.properties"))
    assert result.disable_token_authorization
    assert sources["disable_token_authorization"] == "flag --disable-token-auth"
    assert sources["max_response_size"] == "default"


def test_environment_needs_the_files_consent(tmp_path):
    """``allowed_urls`` need a second consent."""
    assert load(tmp_path, "", {}, {"TS_JOB_QUEUE_SIZE": "5"}).settings.job_queue_size == 100
    flags = {"enable_envvars_config": False}
    assert load(tmp_path, "", flags, {"TS_JOB_QUEUE_SIZE": "5"}).settings.job_queue_size == 100

    environ = {"TS_ALLOWED_URLS": "https://a/.*"}
    text = "enable_envvars_config=true\n"
    assert not load(tmp_path, text, {}, environ).settings.sets_allowed_urls
    result = load(tmp_path, text + "use_env_allowed_urls=true\n", {}, environ).settings
    assert result.sets_allowed_urls
    assert result.allowed_urls == (re.compile("https://a/.*", re.I),)


def test_a_file_beneath_sets_what_the_file_does_not(tmp_path):
    (tmp_path / "beneath").write_text("job_queue_size=1\nload_models=a.mar\nmax_request_size=2\n")
    environ = {"MODELSERVER_CONFIG_BENEATH": str(tmp_path / "beneath")}
    loaded = load(tmp_path, "max_request_size=3\nservice_envelope=\n", {}, environ)
    assert loaded.settings.job_queue_size == 1
    assert loaded.sources["job_queue_size"] == str(tmp_path / "beneath")
    assert loaded.settings.max_request_size == 3
    assert loaded.settings.load_models == (ModelToLoad("a.mar"),)

    named = load(tmp_path, "load_models=", {}, environ)
    assert (named.settings.load_models, named.settings.max_request_size) == ((), 2)
    elsewhere = load(tmp_path, "", {"model_store": str(tmp_path)}, environ)
    assert elsewhere.settings.load_models == ()


@pytest.mark.parametrize(("value", "expected"), [("oip", True), ("no", False), ("", True)])
def test_open_inference_variable_is_always_read(tmp_path, value, expected):
    loaded = load(tmp_path, "ts_open_inference_protocol=true", {}, {"TS_OPEN_INFERENCE_PROTOCOL": value})
    assert loaded.settings.ts_open_inference_protocol is expected


def test_false_flags_are_absent(tmp_path):
    flags = {
        "disable_token_authorization": False,
        "model_store": None,
        "foreground": True,
        "no_config_snapshots": True,
    }
    assert load(tmp_path, "disable_token_authorization=true", flags).settings.disable_token_authorization


def test_the_files_name_comes_from_variable_flag_or_folder(tmp_path):
    """TS_CONFIG_FILE beats --ts-config beats ./config.properties (reference 3.1)."""
    for number, name in enumerate(["config.properties", "flag.properties", "env.properties"], start=1):
        (tmp_path / name).write_text(f"job_queue_size={number}")
    flags = {"ts_config": "flag.properties"}
    environ = {"TS_CONFIG_FILE": str(tmp_path / "env.properties")}
    assert load(tmp_path).settings.job_queue_size == 1
    assert load(tmp_path, None, flags).settings.job_queue_size == 2
    assert load(tmp_path, None, flags, environ).settings.job_queue_size == 3
    assert load(tmp_path, None, flags, {"TS_CONFIG_FILE": ""}).config_file == tmp_path / "flag.properties"


def test_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    """The message is TorchServe's."""
    with pytest.raises(ConfigError, match=r"^--ts-config file not found: nope.properties$"):
        load(tmp_path, None, {"ts_config": "nope.properties"})

    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(type(tmp_path), "read_bytes", refuse)
    path = tmp_path / "config.properties"
    assert refusal_of(tmp_path, "") == f"Invalid configuration: {path}: cannot be read (Permission denied)"
