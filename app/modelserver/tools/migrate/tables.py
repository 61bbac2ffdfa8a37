"""TorchServe's endpoints, flags and configuration keys, and the state of each in modelserver."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modelserver.models.settings.key import Key
from modelserver.models.settings.settings import KEYS, NOT_YET
from modelserver.tools.migrate.changes import BETTER, MISSING, OTHER


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One of TorchServe's."""

    port: str
    method: str
    path: str
    verdict: str = "same"
    remark: str = ""

    @property
    def example(self) -> str:
        """A path of it."""
        return self.path.format(model="m", version="1.0", rest="v1/chat", workflow="w")


_INFERENCE = (
    ("OPTIONS", "/", OTHER, "the OpenAPI document is modelserver's own"),
    ("GET", "/api-description", OTHER, "likewise; `/docs` shows it as a page"),
    ("GET", "/ping"),
    ("POST", "/predictions/{model}", BETTER, "a failing request in a batch fails alone"),
    ("POST", "/predictions/{model}/{version}", BETTER, "likewise"),
    ("POST", "/predictions/{model}/{version}/{rest}", BETTER, "likewise"),
    ("OPTIONS", "/predictions/{model}", OTHER, "own OpenAPI document"),
    ("POST", "/explanations/{model}"),
    ("POST", "/explanations/{model}/{version}"),
    (
        "POST",
        "/v1/models/{model}:predict",
        BETTER,
        "instances are split and batched; errors carry `error` too",
    ),
    ("POST", "/v1/models/{model}:explain", BETTER, "likewise"),
    ("POST", "/v2/models/{model}/infer", BETTER, "rows are split and batched"),
    ("POST", "/v2/models/{model}/explain", BETTER, "likewise"),
    ("GET", "/v2", BETTER, "[Open Inference](open-inference.md), always on"),
    ("GET", "/v2/health/live", BETTER, "likewise"),
    ("GET", "/v2/health/ready", BETTER, "likewise; 503 until all models are ready"),
    ("POST", "/invocations"),
    ("POST", "/models/{model}/invoke"),
    ("POST", "/{model}/predict"),
    ("POST", "/{model}/{version}/predict"),
    ("POST", "/wfpredict/{workflow}", BETTER, "[workflows](workflows.md) that name nodes"),
)
_MANAGEMENT = (
    ("OPTIONS", "/", OTHER, "own OpenAPI document"),
    ("GET", "/api-description", OTHER, "likewise"),
    ("POST", "/models", BETTER, "says why workers failed to start, and rolls back"),
    ("GET", "/models"),
    ("GET", "/models/{model}", BETTER, "also shows the source of each batch setting, and failures"),
    ("GET", "/models/{model}/{version}", BETTER, "likewise"),
    ("GET", "/models/{model}/all", BETTER, "likewise"),
    ("PUT", "/models/{model}", "same", "`min_worker` < 0 is 400; `url` replaces the archive"),
    ("PUT", "/models/{model}/{version}", "same", "likewise"),
    ("PUT", "/models/{model}/{version}/set-default"),
    ("DELETE", "/models/{model}"),
    ("DELETE", "/models/{model}/{version}"),
    ("OPTIONS", "/models/{model}", OTHER, "own OpenAPI document"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/token", "same", "renews tokens; only at this path, not for any text with `/token` in it"),
    ("POST", "/workflows", BETTER, "says what is wrong; needs `enable_model_api`"),
    ("GET", "/workflows"),
    ("GET", "/workflows/{workflow}", "same", "also shows the nodes"),
    ("DELETE", "/workflows/{workflow}", "same", "needs `enable_model_api`"),
)
_METRICS = (("GET", "/metrics", OTHER, "has metrics by default, including modelserver's own"),)

ENDPOINTS = tuple(
    Endpoint(port, *row)
    for port, rows in (("inference", _INFERENCE), ("management", _MANAGEMENT), ("metrics", _METRICS))
    for row in rows
)

FLAGS = {
    "--version": "prints `modelserver Version is …`",
    "--start": "",
    "--stop": "waits until the ports are free",
    "--ts-config": "",
    "--model-store": "",
    "--workflow-store": "need not exist",
    "--models": "a path may be outside the model store",
    "--log-config": "a Python logging configuration (`.json`, `.yaml`, `.ini`), not log4j2",
    "--cpp-log-config": "for the C++ backend",
    "--foreground": "the exit status is the server's own",
    "--no-config-snapshots": "[snapshots](operations.md#snapshots) are restored with `--ts-config` too",
    "--plugins-path": "for Java plugins",
    "--disable-token-auth": "on loopback no token is required anyway, see [Security](security.md)",
    "--enable-model-api": "it is on without the flag",
}
"""TorchServe's flags, with a remark for each."""
SHORT_FLAGS = {
    "--ncs": "--no-config-snapshots",
    "--ppath": "--plugins-path",
    "--dt": "--disable-token-auth",
    "-v": "--version",
}
"""Their other names."""
_FLAG_VERDICTS = {
    **dict.fromkeys(("--cpp-log-config", "--plugins-path"), "no effect"),
    **dict.fromkeys(("--stop", "--foreground"), BETTER),
    **dict.fromkeys(
        ("--log-config", "--version", "--disable-token-auth", "--enable-model-api", "--no-config-snapshots"),
        OTHER,
    ),
}

KEYS_OF_TORCHSERVE = re.findall(
    r"\w+",
    """
    inference_address management_address metrics_address grpc_inference_address grpc_management_address
    grpc_inference_port grpc_management_port grpc_inference_max_connection_age_ms
    grpc_inference_max_connection_age_grace_ms grpc_management_max_connection_age_ms
    grpc_management_max_connection_age_grace_ms enable_grpc_ssl model_store workflow_store load_models models
    model_snapshot default_workers_per_model job_queue_size default_response_timeout default_startup_timeout
    unregister_model_timeout max_request_size max_response_size decode_input_request default_service_handler
    service_envelope install_py_dep_per_model allowed_urls use_env_allowed_urls blacklist_env_vars
    limit_max_image_pixels cors_allowed_origin cors_allowed_methods cors_allowed_headers keystore
    keystore_pass keystore_type private_key_file certificate_file enable_metrics_api metrics_config
    metrics_mode model_metrics_auto_detect disable_system_metrics system_metrics_cmd metric_time_interval
    number_of_gpu enable_envvars_config disable_token_authorization token_expiration_min enable_model_api
    ts_open_inference_protocol ts_header_key_sequence_id ts_header_key_sequence_start
    ts_header_key_sequence_end async_logging debug number_of_netty_threads netty_client_threads use_native_io
    io_ratio prefer_direct_buffer vmargs plugins_path cpp_log_config ipex_enable ipex_gpu_enable
    cpu_launcher_enable cpu_launcher_args initial_worker_port initial_distribution_port model_server_home
    python version
    """,
)
OTHER_DEFAULTS = {
    name: KEYS[name].torchserve for name in KEYS_OF_TORCHSERVE if KEYS[name].torchserve is not None
}
"""TorchServe's defaults where ours differ."""
_KEY_REMARKS = {
    "certificate_file": "TLS 1.3 too; without one, a self-signed certificate needs the package cryptography",
    "keystore_type": "PKCS12 only; the error for JKS says how to convert it",
    "allowed_urls": "without it, only public hosts, and no URLs that need the server's credentials",
    "async_logging": "lines that arrive faster than they can be written are dropped and counted",
    "workflow_store": "need not exist; see [workflows](workflows.md)",
    "load_models": "spaces after commas are allowed",
    "default_workers_per_model": "the default at startup is the number of CPUs that the process may use",
}


def flag_state(flag: str) -> tuple[str, str]:
    """State and remark."""
    return _FLAG_VERDICTS.get(flag, "same"), FLAGS[flag]


def key_state(key: Key) -> tuple[str, str]:
    """State and remark of one of TorchServe's keys."""
    if key.name in OTHER_DEFAULTS:
        ours = f"`{key.default}`" if key.default else "none"
        remark = f"default {ours}, TorchServe's is `{OTHER_DEFAULTS[key.name]}`"
        return OTHER, remark + ("; no other value has an effect yet" if key.name in NOT_YET else "")
    if key.is_for_java:
        return "no effect", _KEY_REMARKS.get(key.name, "for Java, Netty or gRPC's transport")
    if key.name in NOT_YET:
        return MISSING, ""
    return (BETTER if key.name in _KEY_REMARKS else "same"), _KEY_REMARKS.get(key.name, "")
