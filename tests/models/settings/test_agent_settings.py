"""KServe's batcher and payload logger, set as its agent is: by flags, by variables, or in the file."""

import pytest

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.run.cli import agent_keys, build_parser, setting_flags

# The agent's flags (kserve reference 1.7 and 10), a value for each, and what that is here.
FLAGS = {
    "enable_batcher": ("--enable-batcher", "true", True),
    "batcher_max_batch_size": ("--max-batchsize", "16", 16),
    "batcher_max_latency": ("--max-latency", "250", 250),
    "batcher_timeout": ("--batcher-timeout", "30", 30),
    "payload_log_url": ("--log-url", "http://sink.svc:8080/events", "http://sink.svc:8080/events"),
    "payload_log_mode": ("--log-mode", "request", "request"),
    "payload_log_source": ("--source-uri", "pod-1", "pod-1"),
    "payload_log_inference_service": ("--inference-service", "digits", "digits"),
    "payload_log_namespace": ("--namespace", "research", "research"),
    "payload_log_endpoint": ("--endpoint", "default", "default"),
    "payload_log_component": ("--component", "predictor", "predictor"),
    "payload_log_headers": ("--metadata-headers", "X-Request-Id,X-B3-Traceid", "X-Request-Id,X-B3-Traceid"),
    "payload_log_annotations": ("--metadata-annotations", "team=vision", "team=vision"),
    "payload_log_skip_verify": ("--logger-tls-skip-verify", "true", True),
}


def loaded(tmp_path, *flags, environ=None, text=""):
    (tmp_path / "config.properties").write_text(text)
    return load_settings(setting_flags(build_parser().parse_args(flags)), environ or {}, tmp_path)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_and_variables_of_the_agent_set_keys(tmp_path, name):
    flag, text, value = FLAGS[name]
    variable = "MODELSERVER_" + flag.removeprefix("--").upper().replace("-", "_")

    for arguments in ([flag, text], [f"{flag}={text}"]):
        assert getattr(loaded(tmp_path, *arguments).settings, name) == value
    by_variable = loaded(tmp_path, environ={variable: text})
    assert getattr(by_variable.settings, name) == value
    assert by_variable.sources[name] == f"environment {variable}"


def test_all_flags_are_tested():
    assert {key.name for key in agent_keys()} == {*FLAGS, "payload_log_ca_file"}


def test_missing_authorities_of_the_sink_are_refused(tmp_path):
    """The agent's flag for them names a file that must be there."""
    (tmp_path / "ca.crt").write_text("-")

    arguments = loaded(tmp_path, "--logger-ca-cert-file", "ca.crt").settings
    assert arguments.payload_log_ca_file == tmp_path / "ca.crt"
    with pytest.raises(ConfigError, match="payload_log_ca_file=none: an existing file is needed"):
        loaded(tmp_path, "--logger-ca-cert-file", "none")


def test_switches_need_no_value(tmp_path):
    """The name alone switches on, ``=false`` off. Numbers of a batcher that is off are warned of."""
    parse = build_parser().parse_args

    assert parse(["--enable-batcher", "--max-batchsize", "4"]).enable_batcher == "true"
    assert parse(["--enable-batcher=false"]).enable_batcher == "false"
    assert parse([]).enable_batcher is None

    assert loaded(tmp_path, "--max-latency", "5", "--namespace", "research").warnings == (
        "batcher_max_latency has no effect without enable_batcher",
    )
    assert loaded(tmp_path, "--enable-batcher", "--max-latency", "5").warnings == ()
    assert loaded(tmp_path, "--enable-batcher=false").warnings == ()


def test_variable_overrides_flag_and_flag_overrides_file(tmp_path):
    text = "batcher_max_latency=1\npayload_log_mode=response\nbatcher_timeout=9\n"
    flags = ("--max-latency", "2", "--log-mode", "request")
    environ = {"MODELSERVER_MAX_LATENCY": "3", "TS_JOB_QUEUE_SIZE": "5"}
    both = loaded(tmp_path, *flags, environ=environ, text=text)

    assert both.settings.batcher_max_latency == 3
    assert both.settings.payload_log_mode == "request"
    assert both.settings.batcher_timeout == 9
    # TorchServe's variables still need it.
    assert both.settings.job_queue_size == 100


@pytest.mark.parametrize("name", ["batcher_max_batch_size", "batcher_max_latency", "batcher_timeout"])
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "99999999999"])
def test_wrong_numbers_of_the_batcher_stop_the_start(tmp_path, name, text):
    with pytest.raises(ConfigError, match=f"Invalid configuration: {name}={text}: a whole number from 1 to"):
        loaded(tmp_path, "--enable-batcher", f"{KEYS[name].flag}={text}")


def test_unknown_mode_of_the_payload_log_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match="payload_log_mode=some: one of all, request, response is needed"):
        loaded(tmp_path, text="payload_log_mode=some")
