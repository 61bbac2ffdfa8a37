"""Writes docs/migrating.md: its tables and counts come from the code and from the recorded comparison.

python -m docs.migrating > docs/migrating.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from docs.default_sets import default_sets
from starlette.routing import Match
from tests.differential.chapters import chapters
from tests.differential.comparison import ADDED_FIELDS, ADDED_HEADERS
from tests.differential.differences import BETTER, MISSING, OTHER, RULES, expected_of
from tests.differential.replay import recorded

from modelserver.api.app import build_app
from modelserver.archiver import BUILT_IN_HANDLERS, TORCHSERVE_HANDLERS
from modelserver.cli import build_parser
from modelserver.inference.routes import parse_route
from modelserver.settings.keys import KEYS, NOT_YET

if TYPE_CHECKING:
    from modelserver.settings.key import Key

_BEGIN = """\
# From TorchServe to modelserver

modelserver takes TorchServe 0.12's archives, configuration files, command lines, requests and handlers as
they are. This page says how to switch, what was compared to make sure, and the state of every part.

*Made by `python -m docs.migrating > docs/migrating.md`; a test holds it to the code.*

## Three steps

1. Install modelserver into the environment that your handlers run in, in a clone by `pip install .`: torch
   (2.2 or newer) and torchvision (0.17) stay as they are, torchserve may stay beside it, and Java is not
   needed any more. Where there is no torch yet, `pip install '.[torch]'` brings both.
2. Change the first word of the command. Model store and `config.properties` stay as they are:

   ```sh
   modelserver --start --model-store model_store --models all --ts-config config.properties
   ```

   What the file sets that has no effect here is said once, in a line beginning with `Warning:`.
3. Ask it as you asked TorchServe:

   ```sh
   curl localhost:8080/ping
   curl localhost:8081/models
   ```

   To go back, stop it and start TorchServe: nothing was changed in the model store.

Scripts that call `torchserve` and `torch-model-archiver` by name need not be edited:

```sh
python -m modelserver.aliases install ~/.local/bin
```

writes executables of these names. It overwrites nothing but its own aliases unless `--force` is given, and
`remove` in place of `install` takes them away. The server started as `torchserve` finds that name in the
environment variable `MODELSERVER_STARTED_AS`, and has [TorchServe's defaults](#two-sets-of-defaults) unless
`compat_defaults` says otherwise. There is no `torch-workflow-archiver`, as there are no workflows.

It also writes `modelserver_aliases/model_archiver.py` there, for scripts that `import model_archiver`: they
find it with `PYTHONPATH=~/.local/bin/modelserver_aliases`, and the real one without.
"""

_WORDS = """
## Words in the tables

| word | meaning |
|---|---|
| same | as TorchServe 0.12.0 |
| better | does what TorchServe's does, and something that it does wrong or not at all |
| other | different on purpose |
| not yet | accepted or answered, without the effect it has in TorchServe |
| no effect | accepted with a warning: it steers something that only TorchServe has |
"""

_ARCHIVES = """
## Archives

Archives of `torch-model-archiver` load here, and archives of `modelserver-archive` load in TorchServe 0.12.0,
in every format: `default` and `zip-store` (`.mar`), `tgz` (`.tar.gz`), `no-archive` (a folder). Of the same
files both programs pack the same. The comparison above registers each of them on both servers.

- Manifests of older archivers load: without `createdOn`, `archiverVersion`, `runtime` or `modelVersion`, with
  `modelServerVersion`, `specificationVersion`, `implementationVersion`, `engine` or `extensions`.
- An archive without a manifest loads when the registration gives `model_name` and `handler`.
- The runtimes `python` and `python3` both mean the server's Python; `LSP`, the C++ backend, is refused.
- `modelserver-archive` takes all flags of `torch-model-archiver`. Better: `--handler dir/file.py:function`
  works, the export path is made, files that collide, weights that are empty and code or YAML that cannot be
  parsed are warned of, a failed run leaves the old archive, and two runs over the same files make the same
  bytes (`SOURCE_DATE_EPOCH` fixes the time).
- Built-in handlers are named, not packed: {handlers}. Those that TorchServe alone has ({others})
  are packed with a warning.
- Where a script packs archives, `modelserver.model_archiver` is torch-model-archiver's `model_archiver`,
  module by module: `ModelArchiver`, `ModelArchiverConfig`, `ModelArchiverError`, `ArgParser`,
  `generate_model_archive`, `package_model`, `Manifest`, `Model`, `ModelExportUtils`, and its constants.
  What is patched in these modules is what is called; keys that a configuration does not know do not count.

  ```python
  from modelserver.model_archiver import ModelArchiver, ModelArchiverConfig

  config = ModelArchiverConfig("mnist", "mnist_handler.py", "1.0", serialized_file="mnist.pt")
  ModelArchiver.generate_model_archive(config)
  ```
- An archive that cannot be served is refused when it is registered, and nothing else notices: a manifest that
  is no JSON or leads out of the archive, a `model-config.yaml` with tags of Python, entries with `..`, links.
  The answer names the archive, the step and the cause.
"""

_HANDLERS = """
## Handlers

Handlers that import `ts` run as they are: [every name of the `ts` package and its state](ts-names.md). See
[Handlers](handlers.md) for what can be done beyond that. So do their unit tests, with
`pytest -p modelserver_handlers.compat.activate`.

**Handlers that read `instances` themselves.** By default the server splits V1 and V2 bodies
(`/v1/models/…:predict`, `/v2/models/…/infer`), so that instances of many requests share a batch; a handler
that takes `data[0]["body"]["instances"]` apart itself then finds single instances, and fails. To see that
beforehand, look for the words in its source:

```sh
grep -nE "instances|inputs" handler.py
```

If it reads them from the body, it wants `splitInstances: false` in its `model-config.yaml`,
`split_instances=false` in a registration, or the same in `config.properties` for all models; with
[`compat_defaults=torchserve`](#two-sets-of-defaults) it runs as it is. The error names the setting, in the
answer to clients of the same machine (`expose_errors`) and always in `model_log.log`.

**Whole models.** Since 2.6 `torch.load` refuses what `torch.save(model, path)` wrote, whichever server runs
the handler (`Weights only load failed`). Save the weights instead, `torch.save(model.state_dict(), path)`,
and pack the network's class with `--model-file`. For a file that you trust there is `torch.load(path,
weights_only=False)` in the handler, or `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` in the environment of the
server.

**What a failure tells.** Statuses and types of errors are TorchServe's. To clients of the same machine the
message also says which exception it was, at which line of the handler, and what to do about the usual
mistakes; `expose_errors=true` tells all clients, `false` none. The id of the request is in the header
`x-request-id`, before the traceback in `model_log.log`, and at the end of the line in `access_log.log`
where the request failed.
"""

_DEPLOYMENTS = """
## Docker, Kubernetes, Helm, Grafana

The files named here are TorchServe's own; tests read their settings and command lines as a start does. No
container, cluster or Grafana was at hand.

- **Docker.** Its image is replaced by [this one](docker.md): `serve`, `torchserve --start …` and a
  `config.properties` at `/home/model-server/config.properties` mean the same. `docker/config.properties`
  opens all three ports to other machines, so tokens are asked for, as in TorchServe since 0.11;
  `MODELSERVER_INFERENCE_TOKEN` and its relatives ([Security](security.md)) set them, and
  `TS_DISABLE_TOKEN_AUTHORIZATION=true` turns them off. `tail -f /dev/null` behind the command in an entry
  point of your own is not needed: `--foreground` stays, prints the log, and ends with the server. Without a
  configuration of yours, only inference leaves this image; TorchServe's opened management and metrics too.
- **Kubernetes.** A Deployment that runs `torchserve --start --model-store … --ts-config …` needs another
  image only. Probes on `/ping` go on; `/v2/health/live` and `/v2/health/ready` tell a process that must be
  restarted from one that should get no requests yet. [deploy/kubernetes](docker.md#in-kubernetes) has a
  manifest with all of it. The metric of `kubernetes/adapter.yaml` and `hpa.yaml`,
  `ts_queue_latency_microseconds`, is there under its name; but it is a sum that only grows, on both servers,
  so pods are never taken away again, and `autoscaling/v2beta1` is gone since Kubernetes 1.26: scale by what
  waits, as [ours](docker.md#in-kubernetes) do.
- **Helm.** In the chart of `kubernetes/Helm`, `torchserve_image` is the one value to change. Its volume is
  mounted as it is: the model store and `config/config.properties` lie where they lay. Its `args` are
  understood, the ports are the same.
- **Grafana.** Dashboards that read TorchServe's metrics in Prometheus' form show the same: names and labels
  are TorchServe 0.12's (`ts_inference_requests_total`, `ts_inference_latency_microseconds`,
  `ts_queue_latency_microseconds`, `QueueTime`, `CPUUtilization` and so on). Dashboards for versions before
  0.8 select by the label `uuid`, which 0.12 does not have either. [Metrics](metrics.md) lists what is there
  besides: histograms of waiting, batch sizes and phases; `deploy/grafana/modelserver.json` shows them.
"""

_SAGEMAKER = """
## SageMaker

SageMaker's PyTorch toolkit (`sagemaker-pytorch-inference`) starts `torchserve` and works on unmodified once
the [alias](#three-steps) of this name is the first on the `PATH`; a test starts the toolkit of PyPI so.
What it needs:

- `--models model=/opt/ml/model`: what the operator names at the start, in flags, configuration or
  environment, may lie anywhere; what a client names by `url=` must lie in the model store. Links in the
  store are followed.
- `default_service_handler=/path/handler_service.py:handle`: an absolute path names a file outside of the
  archive, and its folder is on the handler's path.
- The toolkit waits for the one process that has `org.pytorch.serve.ModelServer`, the name of TorchServe's
  Java class, in its command line. The server that was started as `torchserve` has it there, as the value of
  a flag that does nothing; one started as `modelserver` has not.
- `--log-config` with a log4j file changes nothing and costs a line in the log.
"""

_NEVER = """
## What does not come

| what | why |
|---|---|
| workflows (`.war`) | TorchServe itself disabled registering them; call models from your own code |
| plugins (`--plugins-path`, jars) and custom snapshot serializers | they are Java classes |
| log4j2 files (`--log-config` with XML) | `--log-config` takes a logging configuration of Python |
| the C++ backend (`LSP`) | archived with TorchServe |
| keys for Netty and the Java virtual machine | there is neither |
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One of TorchServe's; ``example`` is a path of it. The verdict counts where it is there."""

    port: str
    method: str
    path: str
    example: str
    verdict: str = "same"
    remark: str = ""


_INFERENCE = (
    ("OPTIONS", "/", "/", OTHER, "the OpenAPI document is modelserver's own"),
    ("GET", "/api-description", "/api-description", OTHER, "likewise; `/docs` shows it to people"),
    ("GET", "/ping", "/ping", "same", ""),
    ("POST", "/predictions/{model}", "/predictions/m", BETTER, "a failing request of a batch fails alone"),
    ("POST", "/predictions/{model}/{version}", "/predictions/m/1.0", BETTER, "likewise"),
    ("POST", "/predictions/{model}/{version}/{rest}", "/predictions/m/1.0/v1/chat", BETTER, "likewise"),
    ("OPTIONS", "/predictions/{model}", "/predictions/m", OTHER, "own OpenAPI document"),
    ("POST", "/explanations/{model}", "/explanations/m", "same", ""),
    ("POST", "/explanations/{model}/{version}", "/explanations/m/1.0", "same", ""),
    (
        *("POST", "/v1/models/{model}:predict", "/v1/models/m:predict", BETTER),
        "instances are split and batched; errors carry `error` too",
    ),
    ("POST", "/v1/models/{model}:explain", "/v1/models/m:explain", BETTER, "likewise"),
    ("POST", "/v2/models/{model}/infer", "/v2/models/m/infer", BETTER, "rows are split and batched"),
    ("POST", "/v2/models/{model}/explain", "/v2/models/m/explain", BETTER, "likewise"),
    ("GET", "/v2", "/v2", BETTER, "[Open Inference](open-inference.md), without a switch for it"),
    ("GET", "/v2/health/live", "/v2/health/live", BETTER, "likewise"),
    ("GET", "/v2/health/ready", "/v2/health/ready", BETTER, "likewise; it tells the truth"),
    ("POST", "/invocations", "/invocations", "same", ""),
    ("POST", "/models/{model}/invoke", "/models/m/invoke", "same", ""),
    ("POST", "/{model}/predict", "/m/predict", "same", ""),
    ("POST", "/{model}/{version}/predict", "/m/1.0/predict", "same", ""),
    ("POST", "/wfpredict/{workflow}", "/wfpredict/w", OTHER, "always 404: there are no workflows"),
)
_MANAGEMENT = (
    ("OPTIONS", "/", "/", OTHER, "own OpenAPI document"),
    ("GET", "/api-description", "/api-description", OTHER, "likewise"),
    ("POST", "/models", "/models", BETTER, "says why workers fail to start, and then leaves nothing behind"),
    ("GET", "/models", "/models", "same", ""),
    ("GET", "/models/{model}", "/models/m", BETTER, "also tells each batch setting's source, and failures"),
    ("GET", "/models/{model}/{version}", "/models/m/1.0", BETTER, "likewise"),
    ("GET", "/models/{model}/all", "/models/m/all", BETTER, "likewise"),
    ("PUT", "/models/{model}", "/models/m", "same", "`min_worker` < 0 is 400; `url` replaces the archive"),
    ("PUT", "/models/{model}/{version}", "/models/m/1.0", "same", "likewise"),
    ("PUT", "/models/{model}/{version}/set-default", "/models/m/1.0/set-default", "same", ""),
    ("DELETE", "/models/{model}", "/models/m", "same", ""),
    ("DELETE", "/models/{model}/{version}", "/models/m/1.0", "same", ""),
    ("OPTIONS", "/models/{model}", "/models/m", OTHER, "own OpenAPI document"),
    ("GET", "/v1/models/{model}", "/v1/models/m", "same", ""),
    (
        "GET",
        "/token",
        "/token",
        "same",
        "renews tokens; of the path only, not of any text with `/token` in it",
    ),
    ("POST", "/workflows", "/workflows", OTHER, "400: registering is disabled, as at TorchServe's head"),
    ("GET", "/workflows", "/workflows", "same", "empty"),
    ("GET", "/workflows/{workflow}", "/workflows/w", "same", "404"),
    ("DELETE", "/workflows/{workflow}", "/workflows/w", "same", "404"),
)
_METRICS = (("GET", "/metrics", "/metrics", OTHER, "filled by default; own metrics beside TorchServe's"),)

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
    "--workflow-store": "for workflows, of which there are none",
    "--models": "a path may lead out of the model store",
    "--log-config": "a logging configuration of Python (`.json`, `.yaml`, `.ini`), not log4j2",
    "--cpp-log-config": "for the C++ backend",
    "--foreground": "the exit status is the server's own",
    "--no-config-snapshots": "[snapshots](operations.md#snapshots) are restored with `--ts-config` too",
    "--plugins-path": "for plugins of a Java server",
    "--disable-token-auth": "on loopback no token is asked for anyway, see [Security](security.md)",
    "--enable-model-api": "it is on without the flag",
}
"""TorchServe's, with what is to be said of each."""
_FLAG_VERDICTS = {
    **dict.fromkeys(("--workflow-store", "--cpp-log-config", "--plugins-path"), "no effect"),
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
    "certificate_file": "TLS 1.3 too; without any, the throw-away one needs the package cryptography",
    "keystore_type": "PKCS12 only; the message for JKS says how to convert",
    "allowed_urls": "without it, public hosts only",
    "async_logging": "lines that come quicker than they can be written are dropped and counted",
    "workflow_store": "for workflows, of which there are none",
    "load_models": "spaces after commas are allowed",
    "default_workers_per_model": "at start it counts the processors that the process may use",
}


def guide() -> str:
    """The text of the page."""
    handlers, others = (
        ", ".join(f"`{name}`" for name in names) for names in (BUILT_IN_HANDLERS, TORCHSERVE_HANDLERS)
    )
    return (
        _BEGIN
        + _comparison()
        + _WORDS
        + _endpoints()
        + _flags()
        + _keys()
        + default_sets()
        + _ARCHIVES.format(handlers=handlers, others=others)
        + _HANDLERS
        + _DEPLOYMENTS
        + _SAGEMAKER
        + _NEVER
    )


# The comparison


_OF_THE_HEAD = {"phrase", "content-type"}


@dataclass(frozen=True, slots=True)
class Count:
    """How many requests each rule is about; of each chapter how many there are, how many are answered alike,
    and how many alike but for phrase and content type.
    """

    by_rule: Counter[str]
    by_chapter: dict[str, tuple[int, int, int]]

    def total(self) -> tuple[int, int, int]:
        """The sums over all chapters."""
        requests, alike, nearly = (sum(column) for column in zip(*self.by_chapter.values(), strict=True))
        return requests, alike, nearly


def count() -> Count:
    """From the recorded answers and the rules; the tests prove that modelserver answers so."""
    by_rule: Counter[str] = Counter()
    by_chapter: dict[str, tuple[int, int, int]] = {}
    for chapter in chapters():
        theirs = recorded(chapter)
        used = [
            {rule.name for rule in expected_of(chapter, call, theirs[call.name])[1]} for call in chapter.calls
        ]
        alike = sum(not rules for rules in used)
        nearly = sum(bool(rules) and rules <= _OF_THE_HEAD for rules in used)
        by_chapter[chapter.title] = (len(used), alike, nearly)
        by_rule.update(rule for rules in used for rule in rules)
    return Count(by_rule, by_chapter)


def _comparison() -> str:
    counted = count()
    requests, alike, nearly = counted.total()
    other = requests - alike - nearly
    added = ", ".join(f"`{name}`" for name in sorted(ADDED_HEADERS) + sorted(ADDED_FIELDS))
    text = f"""
## What was compared

{requests} requests were sent to the real TorchServe 0.12.0, with small archives that are made for it, and its
answers recorded. modelserver answers {alike} of them with the same status, headers and body, and {nearly}
more with the same but for the phrase of the status line or a content type. The other {other} are different.
All of it is for {len(RULES)} reasons, each in the second table. Times, process ids, request ids and the like
are left out of the comparison, and so are headers and fields of descriptions that modelserver adds:
{added}. Failures of handlers are compared with `expose_errors=false`.

The tests ask modelserver all of it again (`tests/differential`). Where TorchServe and Java
are installed, `MODELSERVER_TEST_TORCHSERVE=<environment> python -m pytest -m slow tests/differential` asks
both side by side.

Handlers made as those of TorchServe's Hugging Face and YOLOv8 examples answer as their models do without a
server, two requests in one batch: with transformers 5.23 and a small random BERT, and with ultralytics 8.4
and a random YOLOv8 in a subclass of `ObjectDetector`. `MODELSERVER_LONG_TESTS=1 python -m pytest -m slow
tests/e2e/test_public_libraries.py` installs both beside the torch that is there, in 20 to 60 s, and asks
them in 35.

| requests about | compared | same | but for phrase, content type | different |
|---|---|---|---|---|
"""
    for title, (asked, same, near) in counted.by_chapter.items():
        text += f"| {title} | {asked} | {same} | {near} | {asked - same - near} |\n"
    sums = (requests, alike, nearly, other)
    text += f"| **all** | {' | '.join(f'**{number}**' for number in sums)} |\n"
    text += "\n| difference | state | requests |\n|---|---|---|\n"
    for rule in RULES:
        text += f"| {rule.why} | {rule.verdict} | {counted.by_rule[rule.name]} |\n"
    return text


# The tables


def _endpoints() -> str:
    text = "\n## Endpoints\n\n| port | endpoint | state | remark |\n|---|---|---|---|\n"
    for endpoint in ENDPOINTS:
        verdict, remark = (endpoint.verdict, endpoint.remark) if is_there(endpoint) else (MISSING, "")
        text += f"| {endpoint.port} | `{endpoint.method} {endpoint.path}` | {verdict} | {remark} |\n"
    grpc = "same" if find_spec("modelserver.grpc") is not None else MISSING
    for service, port in (("inference", 7070), ("management", 7071), ("Open Inference", 7070)):
        text += f"| gRPC {port} | {service} service | {grpc} |  |\n"
    return text + (
        "\nPredictions take any usual method, as in TorchServe; odd ones (`TRACE`, `QUERY`, `PROPFIND`) are "
        "405. Besides: `GET\n/v1/models` and `GET /v1/models/{model}` on the inference port, `GET /docs` and "
        "`GET /openapi.json` on every port.\n"
    )


def is_there(endpoint: Endpoint) -> bool:
    """Whether a listener of that role routes the example."""
    if endpoint.port == "inference" and endpoint.method == "POST" and parse_route(endpoint.example):
        return True
    settings = SimpleNamespace(enable_model_api=True, ts_open_inference_protocol=True, as_torchserve=False)
    services: Any = SimpleNamespace(registry=None, metrics=None, settings=settings, tokens=object())
    role: Any = endpoint.port
    scope = {"type": "http", "path": endpoint.example, "method": endpoint.method, "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in build_app({role}, services).routes)


def _flags() -> str:
    known = {option for action in build_parser()._actions for option in action.option_strings}
    text = "\n## Flags\n\n| flag | state | remark |\n|---|---|---|\n"
    for flag, remark in FLAGS.items():
        verdict = _FLAG_VERDICTS.get(flag, "same") if flag in known else "refused"
        text += f"| `{flag}` | {verdict} | {remark} |\n"
    return text + "\nBesides: `--compat-defaults`, `--print-settings`, and the command `modelserver tune`.\n"


def _keys() -> str:
    text = (
        "\n## Keys of config.properties\n\n"
        "What each means is in [Configuration](configuration.md). Environment variables (`TS_…`) are "
        "TorchServe's.\n"
        "\n| key | state | remark |\n|---|---|---|\n"
    )
    for name in KEYS_OF_TORCHSERVE:
        verdict, remark = _state(KEYS[name])
        text += f"| `{name}` | {verdict} | {remark} |\n"
    own = [f"`{name}`" for name in KEYS if name not in KEYS_OF_TORCHSERVE]
    return text + f"\nBesides: {', '.join(own)}.\n"


def _state(key: Key) -> tuple[str, str]:
    if key.name in OTHER_DEFAULTS:
        ours = f"`{key.default}`" if key.default else "none"
        remark = f"default {ours}, TorchServe's is `{OTHER_DEFAULTS[key.name]}`"
        return OTHER, remark + ("; no other value has an effect yet" if key.name in NOT_YET else "")
    if key.category == "N":
        return "no effect", _KEY_REMARKS.get(key.name, "for Java, Netty or gRPC's transport")
    if key.name in NOT_YET:
        return MISSING, ""
    return (BETTER if key.name in _KEY_REMARKS else "same"), _KEY_REMARKS.get(key.name, "")


if __name__ == "__main__":
    sys.stdout.write(guide())
