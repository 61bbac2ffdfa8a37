"""Two sets of defaults: the server's own, and TorchServe 0.12's to the letter (reference 3.3)."""

from dataclasses import replace

import pytest
from tests.models.settings.conftest import load

from modelserver.errors import ConfigError
from modelserver.models.settings.key import OWN, TORCHSERVE
from modelserver.models.settings.load import explain, set_properties
from modelserver.models.settings.settings import KEYS, Settings
from modelserver.models.settings.sources import STARTED_AS
from modelserver.models.settings.values import convert

# The list of reference 3.3. What nothing sets, or what depends on the machine, is empty.
_EMPTY = """
    grpc_inference_max_connection_age_ms grpc_inference_max_connection_age_grace_ms
    grpc_management_max_connection_age_ms grpc_management_max_connection_age_grace_ms model_store
    workflow_store load_models models model_snapshot default_service_handler service_envelope
    blacklist_env_vars cors_allowed_origin cors_allowed_methods cors_allowed_headers keystore
    private_key_file certificate_file metrics_config system_metrics_cmd number_of_gpu vmargs
    plugins_path cpp_log_config cpu_launcher_args model_server_home python version
"""
_FALSE = """
    enable_grpc_ssl install_py_dep_per_model use_env_allowed_urls model_metrics_auto_detect
    disable_system_metrics enable_envvars_config disable_token_authorization enable_model_api
    ts_open_inference_protocol async_logging debug prefer_direct_buffer ipex_enable ipex_gpu_enable
    cpu_launcher_enable
"""
_TRUE = """
    decode_input_request limit_max_image_pixels enable_metrics_api use_native_io
"""
OF_TORCHSERVE = {
    **dict.fromkeys(_EMPTY.split(), ""),
    **dict.fromkeys(_FALSE.split(), "false"),
    **dict.fromkeys(_TRUE.split(), "true"),
    "inference_address": "http://127.0.0.1:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "grpc_inference_address": "127.0.0.1",
    "grpc_management_address": "127.0.0.1",
    "grpc_inference_port": "7070",
    "grpc_management_port": "7071",
    "default_workers_per_model": "0",
    "job_queue_size": "100",
    "default_response_timeout": "120",
    "default_startup_timeout": "120",
    "unregister_model_timeout": "120",
    "max_request_size": "6553500",
    "max_response_size": "6553500",
    "allowed_urls": "file://.*|http(s)?://.*",
    "keystore_pass": "changeit",
    "keystore_type": "PKCS12",
    "metrics_mode": "log",
    "metric_time_interval": "60",
    "token_expiration_min": "60",
    "ts_header_key_sequence_id": "ts_request_sequence_id",
    "ts_header_key_sequence_start": "ts_request_sequence_start",
    "ts_header_key_sequence_end": "ts_request_sequence_end",
    "number_of_netty_threads": "0",
    "netty_client_threads": "0",
    "io_ratio": "50",
    "initial_worker_port": "9000",
    "initial_distribution_port": "29500",
}
# Behaviour of TorchServe that no key controls (reference 6.2, 6.5, 8.2, 16; design 9).
ITS_WAYS = {
    "batch_policy": "window",
    "split_instances": "false",
    "isolate_failures": "false",
    "token_authorization": "always",
    "ping_token": "true",
    "enable_workflows": "false",
}


@pytest.mark.parametrize("name", OF_TORCHSERVE)
def test_each_key_has_torchserves_default(name):
    key = KEYS[name]
    assert (key.default if key.torchserve is None else key.torchserve) == OF_TORCHSERVE[name]


def test_only_what_differs_is_declared():
    """The column of the table holds TorchServe's differing defaults and ways, nothing else."""
    declared = {name: key.torchserve for name, key in KEYS.items() if key.torchserve is not None}
    differing = {name: text for name, text in OF_TORCHSERVE.items() if KEYS[name].default != text}

    assert declared.items() >= (differing | ITS_WAYS).items()
    assert [name for name, text in declared.items() if text == KEYS[name].default] == []
    assert [name for name in declared if name in OF_TORCHSERVE and name not in differing] == []


def test_both_sets_become_values(tmp_path):
    other = {name: key.torchserve for name, key in KEYS.items() if key.torchserve is not None}
    values = {name: convert(KEYS[name], text, tmp_path) for name, text in other.items()}
    loaded = load(tmp_path, "compat_defaults=torchserve")

    assert loaded.settings == replace(Settings(), compat_defaults=TORCHSERVE, **values)
    assert loaded.settings.token_expiration_min == 60.0
    assert set_properties(loaded) == {"compat_defaults": TORCHSERVE}
    assert load(tmp_path, "").settings == Settings()

    text = "metrics_mode=prometheus\ntoken_expiration_min=\nbatch_policy=\nenable_workflows=true\n"
    made = load(tmp_path, f"compat_defaults=torchserve\n{text}", {"enable_model_api": True}).settings

    assert (made.metrics_mode, made.token_expiration_min, made.batch_policy) == ("prometheus", None, None)
    assert made.enable_model_api
    assert made.enable_workflows
    assert made.ping_token


VARIABLE = "TS_COMPAT_DEFAULTS"


@pytest.mark.parametrize(
    ("text", "flag", "environ", "whose", "source"),
    [
        ("", None, {}, OWN, "default"),
        ("", None, {STARTED_AS: "torchserve"}, TORCHSERVE, "started as torchserve"),
        ("", None, {STARTED_AS: "modelserver"}, OWN, "default"),
        ("compat_defaults=modelserver", None, {STARTED_AS: "torchserve"}, OWN, "config.properties"),
        ("compat_defaults=TorchServe", None, {}, TORCHSERVE, "config.properties"),
        ("compat_defaults=torchserve", "modelserver", {}, OWN, "flag --compat-defaults"),
        ("", "torchserve", {}, TORCHSERVE, "flag --compat-defaults"),
        ("", "modelserver", {VARIABLE: "torchserve"}, TORCHSERVE, f"environment {VARIABLE}"),
        (
            "compat_defaults=torchserve",
            None,
            {VARIABLE: "modelserver", STARTED_AS: "torchserve"},
            OWN,
            f"environment {VARIABLE}",
        ),
        ("compat_defaults=torchserve", None, {"TS_COMPAT_DEFAULTS": ""}, TORCHSERVE, "config.properties"),
    ],
)
def test_who_chooses(tmp_path, text, flag, environ, whose, source):
    """Variable over flag over file over the name that was called; no consent of the file is needed."""
    loaded = load(tmp_path, text, {"compat_defaults": flag}, environ)

    assert loaded.settings.compat_defaults == whose
    assert loaded.settings.as_torchserve == (whose == TORCHSERVE)
    assert loaded.sources["compat_defaults"].endswith(source)


def test_default_sets_are_named(tmp_path):
    """--print-settings distinguishes a default of TorchServe from one that both sets share."""
    with pytest.raises(
        ConfigError, match=r"compat_defaults=kserve: one of modelserver, torchserve is needed"
    ):
        load(tmp_path, "", {}, {"TS_COMPAT_DEFAULTS": "kserve"})

    lines = explain(load(tmp_path, "compat_defaults=torchserve")).splitlines()
    assert "metrics_mode = log (default of TorchServe)" in lines
    assert "job_queue_size = 100 (default)" in lines
