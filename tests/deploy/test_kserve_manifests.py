"""``deploy/kserve``: KServe would take it, and what it says to the server is understood there."""

import re

import pytest
import yaml
from tests.deploy import manifests
from tests.deploy.schemas import problems
from tests.documents import describe_listener

from modelserver.models.options.table import Batcher
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.run.cli import build_parser, setting_flags
from modelserver.surface.auth.scopes import needed_scope
from modelserver.tools.container.__main__ import HTTP_PORT, METRICS_PORT, MOUNTED, prepare

_ALL = {
    name: resource
    for name, resource in manifests.in_folder(manifests.KSERVE)
    if resource["kind"] != "Kustomization"
}
_RUNTIMES = {
    resource["metadata"]["name"]: resource["spec"]
    for resource in _ALL.values()
    if resource["kind"].endswith("ServingRuntime")
}
_INFERENCE = [each for each in _ALL.values() if each["kind"] == "InferenceService"]
_SERVICES = {each["metadata"]["name"]: each for each in _INFERENCE}
_CONFIG = yaml.safe_load((manifests.KSERVE / "model-config.yaml").read_text(encoding="utf-8"))
_KSERVES_OWN = "kserve-torchserve"


def mounted(folder):
    """What KServe's TorchServe runtime finds in its container."""
    for name in ("config", "model-store"):
        (folder / name).mkdir()
    (folder / "model-store" / "mnist.mar").write_bytes(b"")
    (folder / "config" / "config.properties").write_text(
        "inference_address=http://0.0.0.0:8085\nmanagement_address=http://0.0.0.0:8085\n"
        "metrics_address=http://0.0.0.0:8082\ngrpc_inference_port=7070\nenable_envvars_config=true\n"
        "install_py_dep_per_model=true\nmetrics_format=prometheus\nNUM_WORKERS=1\n"
        "model_store=/mnt/models/model-store\n"
        'model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"mnist":{"1.0":{"defaultVersion":true,'
        '"marName":"mnist.mar","minWorkers":1,"maxWorkers":5,"batchSize":5,"maxBatchDelay":200,'
        '"responseTimeout":60}}}}\n',
        encoding="utf-8",
    )
    return folder


def loaded(runtime, folder, monkeypatch, *more, **labels):
    """The settings that a runtime's container comes to, with models in ``folder``, ``more`` flags behind."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    filled = {"{{.Name}}": "digits", **{f"{{{{.Labels.{name}}}}}": text for name, text in labels.items()}}

    def fill(text):
        for placeholder, value in filled.items():
            text = text.replace(placeholder, value)
        assert "{{" not in text
        return text.replace(str(MOUNTED), str(folder))

    spec = manifests.container(_RUNTIMES[runtime])
    environment = {name: fill(value) for name, value in manifests.variables(spec).items()}
    flags, environment = prepare([*(fill(word) for word in spec["args"]), *more], environment)
    options = build_parser().parse_args(flags)
    assert options.foreground
    return load_settings(setting_flags(options), environment, folder)


@pytest.mark.parametrize("name", _ALL)
def test_kserves_resources_keep_to_the_published_schema(name):
    assert problems(_ALL[name]) == []


def test_a_wrong_inference_service_is_reported():
    (wrong, *_) = manifests.resources(manifests.KSERVE / "inferenceservice.yaml")
    wrong["spec"]["predictor"]["model"]["modelFormat"] = "pytorch"
    wrong["spec"]["predictor"]["minReplica"] = 1
    (runtime, *_) = manifests.resources(manifests.KSERVE / "clusterservingruntime.yaml")
    runtime["spec"]["containers"][0]["argument"] = []

    assert sorted(problems(wrong)) == [
        "InferenceService.spec.predictor.model.modelFormat: no object",
        "InferenceService.spec.predictor: there is no minReplica",
    ]
    assert len(problems(runtime)) == 1


@pytest.mark.parametrize("name", _SERVICES)
def test_services_leave_batches_and_settings_to_the_server(name):
    """``batcher:`` and ``logger:`` would put KServe's agent in front of the server, which has both itself. A
    limit below the batch size would keep every batch waiting for its delay; services called ``ts-…`` would
    look like settings. Pods have the time of the plain Deployment's to drain: in Standard mode by a field of
    its own, in Knative's, which alone starts a pod for a request, by the longest time of a request.
    """
    assert {"batcher", "logger"}.isdisjoint(dict(manifests.walk(_SERVICES[name])))

    limit = _SERVICES[name]["spec"]["predictor"].get("containerConcurrency", 0)

    assert limit == 0 or limit >= _CONFIG["batcher"]["maxBatchSize"]

    assert _SERVICES[name]["spec"]["predictor"]["enableServiceLinks"] is False

    (deployment,) = manifests.resources(manifests.KUBERNETES / "deployment.yaml")
    predictor = _SERVICES[name]["spec"]["predictor"]
    runtime = manifests.container(_RUNTIMES[predictor["model"]["runtime"]])
    is_knative = predictor.get("minReplicas") == 0
    mode = _SERVICES[name]["metadata"]["annotations"]["serving.kserve.io/deploymentMode"]
    seconds = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert mode == ("Knative" if is_knative else "Standard")
    assert runtime["lifecycle"] == manifests.container(deployment["spec"]["template"]["spec"])["lifecycle"]
    assert is_knative or predictor["terminationGracePeriodSeconds"] == seconds
    assert not is_knative or predictor["timeout"] >= seconds


def test_the_batcher_is_set_where_the_model_is():
    """With the figures that KServe documents; requests have more time at the ingress than in the server."""
    predictor = _SERVICES["mnist"]["spec"]["predictor"]
    read, warnings = parse_model_config(yaml.safe_dump(_CONFIG))

    assert warnings == []
    assert read.batcher == Batcher(32, 500, 60, frozenset({"max_batch_size", "max_latency", "timeout"}))
    assert _CONFIG["batcher"] == {"maxBatchSize": 32, "maxLatency": 500, "timeout": 60}
    assert predictor["timeout"] > _CONFIG["batcher"]["timeout"]


def test_all_protocols_have_a_runtime():
    """V1, V2 over REST and V2 over gRPC, each by one runtime, which goes before KServe's own; another takes
    its place under its name, in a namespace.
    """
    for service in _SERVICES.values():
        model = service["spec"]["predictor"]["model"]
        runtime = _RUNTIMES[model["runtime"]]
        assert model["protocolVersion"] in runtime["protocolVersions"]
        assert model["modelFormat"]["name"] in {known["name"] for known in runtime["supportedModelFormats"]}

    ours = {name: spec for name, spec in _RUNTIMES.items() if name != _KSERVES_OWN}
    spoken = [protocol for spec in ours.values() for protocol in spec["protocolVersions"]]
    formats = [known for spec in ours.values() for known in spec["supportedModelFormats"]]

    assert sorted(spoken) == ["grpc-v2", "v1", "v2"]
    assert {(known["name"], known["autoSelect"], known["priority"]) for known in formats} == {
        ("pytorch", True, 3)
    }

    (runtime,) = manifests.resources(manifests.KSERVE / "servingruntime-torchserve.yaml")

    assert runtime["kind"] == "ServingRuntime"
    assert runtime["metadata"]["name"] == _KSERVES_OWN
    assert runtime["spec"]["supportedModelFormats"] == [
        {"name": "pytorch", "version": "1", "autoSelect": True, "priority": 2}
    ]


@pytest.mark.parametrize("name", _RUNTIMES)
def test_containers_are_what_kserve_expects(name):
    """One with KServe's name, and one port, which Knative insists on and probes ask. Each variable is a
    setting's, or one of those for folders, which lie in the writable volume.
    """
    spec = manifests.container(_RUNTIMES[name])

    assert spec["name"] == "kserve-container"
    assert len(spec["ports"]) == 1
    assert spec["securityContext"]["readOnlyRootFilesystem"]
    assert manifests.not_restricted(_RUNTIMES[name]) == []
    assert manifests.unbounded_disk(_RUNTIMES[name]) == []
    assert [mount["name"] for mount in spec["volumeMounts"]] == [
        v["name"] for v in _RUNTIMES[name]["volumes"]
    ]

    known = {key.env for key in KEYS.values()}
    for variable, value in manifests.variables(manifests.container(_RUNTIMES[name])).items():
        assert variable in known or value.startswith("/tmp/")

    spec = manifests.container(_RUNTIMES[name])
    (port,) = (port["containerPort"] for port in spec["ports"])
    for probe in (spec["livenessProbe"], spec["readinessProbe"]):
        (request,) = (probe[way] for way in ("httpGet", "grpc", "tcpSocket") if way in probe)
        assert request["port"] == port
        if "path" in request:
            assert "get" in describe_listener("inference", "0")["paths"][request["path"]]
            assert needed_scope({"inference"}, "GET", request["path"], ping_token=True) is None

    annotations = _RUNTIMES[name]["annotations"]

    assert annotations["prometheus.kserve.io/port"] == str(METRICS_PORT)
    assert annotations["prometheus.kserve.io/path"] in describe_listener("metrics", "0")["paths"]


@pytest.mark.parametrize("name", _RUNTIMES)
def test_a_torchserve_layout_is_served_on_the_runtimes_port(name, tmp_path, monkeypatch):
    """Whatever the file says of addresses; its models, their names and their batches are the file's."""
    settings = loaded(name, mounted(tmp_path), monkeypatch, serviceEnvelope="kserve").settings
    (port,) = (port["containerPort"] for port in manifests.container(_RUNTIMES[name])["ports"])
    grpc = "grpc-v2" in _RUNTIMES[name]["protocolVersions"]

    assert str(settings.inference_address) == f"http://0.0.0.0:{HTTP_PORT}"
    assert settings.management_address.is_loopback
    assert settings.metrics_address.port == METRICS_PORT
    assert port == (settings.grpc_inference_port if grpc else settings.inference_address.port)
    assert settings.grpc_inference_address == "0.0.0.0"
    assert settings.model_store == tmp_path / "model-store"
    assert '"mnist.mar"' in (settings.model_snapshot or "")
    assert settings.load_models == ()
    assert settings.disable_token_authorization
    assert (settings.log_files, settings.log_probes) == (False, False)
    assert settings.service_envelope == ("kserve" if name == _KSERVES_OWN else None)


def test_without_the_label_there_is_no_envelope(tmp_path, monkeypatch):
    """KServe then fills in nothing."""
    settings = loaded(_KSERVES_OWN, mounted(tmp_path), monkeypatch, serviceEnvelope="").settings
    assert settings.service_envelope is None


def test_a_lone_archive_is_called_as_the_service(tmp_path, monkeypatch):
    (tmp_path / "mnist.mar").write_bytes(b"")
    settings = loaded("modelserver", tmp_path, monkeypatch).settings

    assert [(item.name, item.url) for item in settings.load_models] == [("digits", "mnist.mar")]
    assert settings.model_store == tmp_path


def test_batch_arguments_of_a_service_apply_to_all_its_models(tmp_path, monkeypatch):
    """KServe appends the arguments of the service to the runtime's."""
    arguments = _SERVICES["torchserve"]["spec"]["predictor"]["model"]["args"]
    settings = loaded(_KSERVES_OWN, mounted(tmp_path), monkeypatch, *arguments, serviceEnvelope="").settings

    assert settings.enable_batcher
    assert (settings.batcher_max_batch_size, settings.batcher_max_latency) == (32, 500)
    assert settings.disable_token_authorization


def test_events_name_the_service(tmp_path, monkeypatch):
    """Events have the attributes of KServe's agent; none are sent before a sink is set."""
    settings = loaded("modelserver", mounted(tmp_path), monkeypatch).settings

    assert settings.payload_log_url is None
    assert settings.payload_log_inference_service == "digits"
    assert settings.payload_log_component == "predictor"


def test_autoscalers_read_gauges_of_a_services_pods():
    request = {}
    for name, service in _SERVICES.items():
        for metric in service["spec"]["predictor"].get("autoScaling", {}).get("metrics", []):
            query = metric["external"]["metric"]["query"]
            (pods,) = re.findall(r'pod=~"([^"]+)"', query)
            assert re.fullmatch(pods, f"{name}-predictor-6d4cf56db6-x2v7p")
            request[re.findall(r"modelserver_\w+", query)[0]] = metric["external"]["target"]["averageValue"]

    full = str(_CONFIG["batcher"]["maxBatchSize"])
    assert request == {"modelserver_queue_requests": full, "modelserver_batches_in_flight": "0.8"}
    assert set(request) <= manifests.gauges()

    service, autoscaler = manifests.resources(manifests.KSERVE / "inferenceservice-hpa.yaml")
    name = service["metadata"]["name"]
    (metric,) = autoscaler["spec"]["metrics"]

    assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "external"
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == f"{name}-predictor"
    assert metric["pods"]["metric"]["name"] in manifests.gauges()
    assert "minReplicas" not in service["spec"]["predictor"]
