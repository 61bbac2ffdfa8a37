import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.settings.conftest import load, refusal_of

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.models.settings.values import ModelToLoad


def test_the_default_allowed_urls_written_out_permit_nothing_more(tmp_path):
    """Copying the default line does not open private targets (F62)."""
    assert not load(tmp_path, "allowed_urls=file://.*|http(s)?://.*").settings.sets_allowed_urls


def test_stores_are_read(tmp_path):
    """Registrations from a workflow store that is not there find nothing: TorchServe's own image names a
    folder that it does not have. For a model store the message is the launcher's of reference 2.1.
    """
    (tmp_path / "flows").mkdir()
    loaded = load(tmp_path, None, {"load_models": ["a.mar", "b=c.mar"], "workflow_store": "flows"})
    assert loaded.settings.load_models == (ModelToLoad("a.mar"), ModelToLoad("c.mar", "b"))
    assert loaded.settings.workflow_store == tmp_path / "flows"
    assert loaded.warnings == ()

    for flags, text in (({"workflow_store": "/no/wf-store"}, ""), ({}, "workflow_store=/no/wf-store")):
        loaded = load(tmp_path, text, flags)
        assert (loaded.settings.workflow_store, loaded.warnings) == (Path("/no/wf-store"), ())

    assert refusal_of(tmp_path, "", {"model_store": "nope"}) == "--model-store directory not found: nope"


def test_variables_inside_values_are_replaced(tmp_path):
    loaded = load(tmp_path, "job_queue_size=$$SIZE$$", {}, {"SIZE": "9"})
    assert loaded.settings.job_queue_size == 9
    assert refusal_of(tmp_path, "x=$$SIZE$$") == "Invalid configuration: Invalid Environment Variable SIZE"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("job_queue_size=abc", "a whole number of at least 1 is needed"),
        ("job_queue_size=0", "a whole number of at least 1 is needed"),
        ("job_queue_size=", "a whole number of at least 1 is needed"),
        ("job_queue_size=1.5", "a whole number of at least 1 is needed"),
        ("default_response_timeout=-1", "a whole number of at least 1 is needed"),
        ("drain_timeout=nan", "a number of at least 0 is needed"),
        ("silence_timeout=soon", "a number of at least 0.1 is needed"),
        ("model_snapshot=1", "a JSON object is needed"),
        ("grpc_inference_port=70000", "a whole number from 0 to 65535 is needed"),
        (
            "inference_address=127.0.0.1",
            "Invalid binding address: 127.0.0.1: http[s]://host[:port] or unix:/path is needed",
        ),
        (
            "metrics_address=http://h:65535",
            "Invalid port number: http://h:65535: http[s]://host[:port] or unix:/path is needed",
        ),
        ("metrics_mode=cloud", "one of log, prometheus, legacy is needed"),
        ("service_envelope=xml", "one of body, json, kserve, kservev2 is needed"),
        ("batch_policy=fast", "one of adaptive, greedy, window is needed"),
        ("split_instances=maybe", "one of auto, true, false is needed"),
        ("model_store=nope", "an existing directory, or a URL like s3://bucket/folder is needed"),
        ("certificate_file=nope.pem", "an existing file is needed"),
        ("private_key_file=nope.pem", "an existing file is needed"),
        ("keystore=nope.p12", "an existing file is needed"),
        ("model_snapshot=[]", "a JSON object is needed"),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(tmp_path, line, reason):
    """One line says all, and where it stands in the file (F66 for the certificate files)."""
    where = f"({tmp_path / 'config.properties'}, line 3)"
    text = f"# one\nmetrics_address=https://127.0.0.1:8082\n{line}"
    assert refusal_of(tmp_path, text) == f"Invalid configuration: {line}: {reason} {where}"


@pytest.mark.parametrize(
    "line", ["blacklist_env_vars=(", "allowed_urls=https://a/.*,*", "models={", "model_snapshot={"]
)
def test_refusals_of_patterns_and_json_say_what_is_wrong(tmp_path, line):
    assert re.fullmatch(
        rf"Invalid configuration: {re.escape(line)}: .* is needed \(.+\) \(.+, line 1\)",
        refusal_of(tmp_path, line),
    )


def test_a_deep_models_value_is_refused(tmp_path):
    """JSON nested 100 000 deep is an error of one short line (F3)."""
    message = refusal_of(tmp_path, "models=" + "[" * 100_000)
    assert len(message) < 700


def test_https_addresses_are_read(tmp_path):
    """Ports that are not named are TorchServe's for https."""
    made = load(tmp_path, "inference_address=https://0.0.0.0\nmanagement_address=https://127.0.0.1").settings
    assert str(made.inference_address) == "https://0.0.0.0:443"
    assert str(made.management_address) == "https://127.0.0.1:8444"


@pytest.mark.parametrize(
    "text",
    [
        "management_address=http://0.0.0.0:8081",
        "management_address=http://0.0.0.0:8081\ndisable_token_authorization=true",
        "inference_address=http://10.0.0.1:80\nmanagement_address=http://10.0.0.1:80",
    ],
)
def test_management_may_be_open(tmp_path, text):
    """Off loopback tokens are required unless a key turns them off; the start is not refused (F63)."""
    assert not load(tmp_path, text).settings.management_address.is_loopback


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(KEYS)), st.text())
def test_any_text_is_a_value_or_a_refusal(tmp_path, name, text):
    """Fuzzed values end in settings or in ConfigError of one line (F70)."""
    try:
        load_settings({name: text}, {}, tmp_path)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


@pytest.mark.parametrize(
    ("lines", "visible"),
    [
        ({}, True),
        ({"inference_address": "unix:/run/model.sock"}, True),
        ({"inference_address": "http://0.0.0.0:8080"}, False),
        ({"grpc_inference_address": "0.0.0.0"}, False),
        ({"grpc_inference_address": "0.0.0.0", "enable_grpc_api": "false"}, True),
        ({"inference_address": "http://0.0.0.0:8080", "expose_errors": "true"}, True),
        ({"expose_errors": "false"}, False),
        ({"compat_defaults": "torchserve"}, False),
    ],
)
def test_clients_of_this_machine_see_errors(lines, visible, tmp_path):
    """By default only clients of this machine see them, and nobody does with TorchServe's defaults."""
    (tmp_path / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    flags = {"ts_config": str(tmp_path / "config.properties")}
    assert load_settings(flags, {}, tmp_path).settings.shows_errors == visible
