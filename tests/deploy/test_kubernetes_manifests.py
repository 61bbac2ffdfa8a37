"""``deploy/kubernetes``: Kubernetes would take it, and what it names is there in the server."""

import functools
import re
import shutil
import subprocess

import pytest
import yaml
from tests.deploy import manifests
from tests.deploy.schemas import problems
from tests.documents import describe_listener

from modelserver.errors import ConfigError
from modelserver.ext.tokens.operator_tokens import read_token_file
from modelserver.run.cli import build_parser
from modelserver.surface.auth.scopes import Scope, needed_scope

_ALL = dict(manifests.in_folder(manifests.KUBERNETES))
_NAME = {"app.kubernetes.io/name": "modelserver"}

# Seconds from the end of the drain to that of the process: workers, connections, gRPC (server.py).
_CLOSING = 2.0 + 5.0 + 5.0


def one(file):
    (result,) = manifests.resources(manifests.KUBERNETES / file)
    return result


def pod():
    return one("deployment.yaml")["spec"]["template"]["spec"]


def configured(folder):
    """The settings of the generated ConfigMap; its directories are made below ``folder``."""
    (made,) = one("kustomization.yaml")["configMapGenerator"]
    return manifests.settings_of(
        folder, (manifests.KUBERNETES / made["files"][0]).read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", [name for name in _ALL if "Kustomization" not in name])
def test_resources_keep_to_the_published_schema(name):
    assert problems(_ALL[name]) == []


def test_a_wrong_resource_is_reported():
    wrong = one("service.yaml")
    wrong["spec"]["ports"][0]["port"] = "http"
    wrong["spec"]["balance"] = True

    assert len(problems(wrong)) > 0
    scaled = one("scaledobject.yaml")
    scaled["spec"]["triggers"][0]["metadata"]["threshold"] = 4
    scaled["spec"]["maxReplicas"] = 4
    assert problems(scaled) == [
        "ScaledObject.spec.triggers[0].metadata.threshold: 4 is no str",
        "ScaledObject.spec: there is no maxReplicas",
    ]


def test_the_kustomization_names_files_that_are_there():
    """All but the Secret, which you make, and what belongs to one autoscaler or the other. The settings are
    mounted by a name that changes with them, so that other settings mean other pods.
    """
    kustomization = one("kustomization.yaml")
    named = set(kustomization["resources"])
    files = {path.name for path in manifests.KUBERNETES.glob("*.yaml")}

    assert named <= files
    assert files - named == {"kustomization.yaml", "secret.yaml", "scaledobject.yaml"}
    assert sorted(path.name for path in manifests.KUBERNETES.iterdir() if path.name not in files) == [
        "config.properties"
    ]
    assert [image["name"] for image in kustomization["images"]] == [manifests.container(pod())["image"]]

    (made,) = one("kustomization.yaml")["configMapGenerator"]
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == "config"]

    assert made["files"] == ["config.properties"]
    assert volume["configMap"]["name"] == made["name"]
    assert "disableNameSuffixHash" not in made["options"]


def test_the_variant_for_openshift_fixes_no_user():
    (variant,) = manifests.resources(manifests.ROOT / "deploy" / "openshift" / "kustomization.yaml")
    (patch,) = variant["patches"]
    removed = [step["path"] for step in yaml.safe_load(patch["patch"]) if step["op"] == "remove"]
    security = pod()["securityContext"]
    numbers = {
        f"/spec/template/spec/securityContext/{name}" for name, value in security.items() if value == 1000
    }

    assert variant["resources"] == ["../kubernetes"]
    assert patch["target"] == {"kind": "Deployment", "name": "modelserver"}
    assert sorted(removed) == sorted(numbers)
    assert manifests.container(pod())["securityContext"].keys().isdisjoint({"runAsUser", "runAsGroup"})


@functools.cache
def overlay(folder):
    """A variant of deploy/kubernetes, as kustomize makes it; its resources by kind."""
    command = ["kubectl", "kustomize", str(manifests.ROOT / "deploy" / folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {result["kind"]: result for result in yaml.safe_load_all(made)}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", ["kubernetes", "gpu", "openshift", "queue-metric"])
def test_kustomize_makes_resources_that_keep_to_the_schema(folder):
    made = overlay(folder)

    assert [problem for result in made.values() for problem in problems(result)] == []
    policies = {"HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"}
    assert set(made) == {"ConfigMap", "Deployment", "Service"} | policies


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_variant_without_pods_has_one_autoscaler():
    """It scales the Deployment from 0 on, by what the add-on counts for the Service; nothing keeps a pod."""
    made = overlay("scale-to-zero")
    route, scaled = made["InterceptorRoute"]["spec"], made["ScaledObject"]["spec"]
    push, busy = scaled["triggers"]

    assert [problem for result in made.values() for problem in problems(result)] == []
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget"}.isdisjoint(made)
    assert scaled["scaleTargetRef"]["name"] == made["Deployment"]["metadata"]["name"]
    assert (scaled["minReplicaCount"], push["type"]) == (0, "external-push")
    assert push["metadata"]["interceptorRoute"] == made["InterceptorRoute"]["metadata"]["name"]
    assert route["target"]["service"] == made["Service"]["metadata"]["name"]
    assert route["target"]["port"] in [port["port"] for port in made["Service"]["spec"]["ports"]]
    assert set(re.findall(r"modelserver_\w+", busy["metadata"]["query"])) <= manifests.gauges()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_variants_for_gpus_and_the_queue_change_what_they_say():
    made = overlay("gpu")
    spec = made["Deployment"]["spec"]

    assert spec["strategy"] == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    limits = manifests.container(spec["template"]["spec"])["resources"]["limits"]
    assert limits == {**manifests.container(pod())["resources"]["limits"], "nvidia.com/gpu": 1}
    assert manifests.container(spec["template"]["spec"])["image"] == "modelserver:cuda"
    assert made["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == 1

    plain, both = (
        result["HorizontalPodAutoscaler"]["spec"]["metrics"]
        for result in (overlay("kubernetes"), overlay("queue-metric"))
    )

    assert both[:-1] == plain
    assert both[-1]["pods"]["metric"]["name"] == "modelserver_queue_requests"


def test_the_network_policy_opens_the_ports_of_the_service():
    policy = one("networkpolicy.yaml")["spec"]
    inference, metrics = policy["ingress"]

    assert policy["podSelector"]["matchLabels"] == _NAME
    assert [port["port"] for port in inference["ports"]] == ["http", "grpc"]
    assert "from" not in inference
    assert [port["port"] for port in metrics["ports"]] == ["metrics"]
    assert len(metrics["from"]) == 1
    assert {"Ingress", "Egress"} == set(policy["policyTypes"])
    assert policy["egress"] == []


def test_the_settings_keep_management_in_the_pod(tmp_path):
    """Each key is known and has an effect; logs are only printed, without probes. All that others reach
    requires tokens, except for metrics and probes; models cannot be changed in single pods.
    """
    loaded = configured(tmp_path)

    assert loaded.warnings == ()
    assert loaded.settings.load_all
    assert (loaded.settings.log_files, loaded.settings.log_probes) == (False, False)
    assert loaded.settings.token_file == tmp_path / "tokens"

    options = build_parser().parse_args(manifests.container(pod())["args"])
    mounts = {mount["name"]: mount["mountPath"] for mount in manifests.container(pod())["volumeMounts"]}

    assert options.ts_config == f"{mounts['config']}/config.properties"
    assert options.no_config_snapshots

    settings = configured(tmp_path).settings

    assert settings.management_address.is_loopback
    assert settings.grpc_management_address == "127.0.0.1"
    assert not settings.enable_model_api
    assert not settings.disable_token_authorization
    hosts = (settings.inference_address.host, settings.metrics_address.host, settings.grpc_inference_address)
    assert set(hosts) == {"0.0.0.0"}


def test_ports_are_those_of_the_settings(tmp_path):
    settings = configured(tmp_path).settings
    expected = {
        "http": settings.inference_address.port,
        "metrics": settings.metrics_address.port,
        "grpc": settings.grpc_inference_port,
    }
    annotations = one("deployment.yaml")["spec"]["template"]["metadata"]["annotations"]

    assert {port["name"]: port["containerPort"] for port in manifests.container(pod())["ports"]} == expected
    assert {port["targetPort"]: port["port"] for port in one("service.yaml")["spec"]["ports"]} == expected
    assert annotations["prometheus.io/port"] == str(expected["metrics"])
    assert annotations["prometheus.io/path"] in describe_listener("metrics", "0")["paths"]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_are_answered_without_a_token(probe):
    request = manifests.container(pod())[probe]["httpGet"]

    assert request["port"] == "http"
    assert "get" in describe_listener("inference", "0")["paths"][request["path"]]
    assert needed_scope({"inference"}, "GET", request["path"], ping_token=True) is None


def test_only_readiness_depends_on_models():
    """A pod whose worker is being replaced gets no requests, but it is not restarted."""
    paths = {
        name: manifests.container(pod())[f"{name}Probe"]["httpGet"]["path"]
        for name in ("liveness", "readiness")
    }
    assert paths == {"liveness": "/v2/health/live", "readiness": "/v2/health/ready"}


def test_there_is_time_to_drain(tmp_path):
    """The grace period holds what happens first, the drain, and the end of the process."""
    sleep, pause = manifests.container(pod())["lifecycle"]["preStop"]["exec"]["command"]
    grace = pod()["terminationGracePeriodSeconds"]

    assert sleep == "sleep"
    assert grace >= float(pause) + configured(tmp_path).settings.drain_timeout + _CLOSING


def test_the_pod_has_no_rights_that_it_does_not_need():
    """The image's user, not root; what the server writes lies in bounded volumes, the rest is read only."""
    dockerfile = (manifests.ROOT / "Dockerfile").read_text(encoding="utf-8")
    around, inside = pod()["securityContext"], manifests.container(pod())["securityContext"]

    assert manifests.not_restricted(pod()) == []
    assert f"USER {around['runAsUser']}:{around['runAsGroup']}\n" in dockerfile
    assert inside["readOnlyRootFilesystem"]
    assert (pod()["automountServiceAccountToken"], pod()["enableServiceLinks"]) == (False, False)

    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in manifests.container(pod())["volumeMounts"]}
    writable = {path for path, mount in mounts.items() if "emptyDir" in volumes[mount["name"]]}

    assert writable == {"/tmp", *manifests.variables(manifests.container(pod())).values()}
    assert set(manifests.variables(manifests.container(pod()))) == {"XDG_CACHE_HOME"}
    assert all(mount.get("readOnly") for path, mount in mounts.items() if path not in writable)
    assert {mount["name"] for mount in mounts.values()} == set(volumes)

    assert manifests.unbounded_disk(pod()) == []


def test_the_secret_has_a_token_for_each_scope(tmp_path):
    """So that the server makes none and writes no file. Nobody serves with tokens of a public file."""
    secret = one("secret.yaml")
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == "tokens"]

    assert set(secret["stringData"]) == {scope.value for scope in Scope}
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]

    for name, token in one("secret.yaml")["stringData"].items():
        (tmp_path / name).write_text(token, encoding="utf-8")

    with pytest.raises(ConfigError, match="at least 8 characters"):
        read_token_file(tmp_path)


def test_autoscalers_scale_the_deployment_by_its_gauges():
    """From two pods on, so that one may be disrupted. A metric that nobody provides would keep the plain one
    from removing pods; the other's queries select pods by the names that Kubernetes gives them.
    """
    deployment = one("deployment.yaml")["spec"]

    assert deployment["template"]["metadata"]["labels"] == _NAME
    assert deployment["selector"]["matchLabels"] == _NAME
    assert one("service.yaml")["spec"]["selector"] == _NAME
    assert one("poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"] == _NAME

    deployment, hpa, scaled = (
        one(f"{name}.yaml") for name in ("deployment", "horizontalpodautoscaler", "scaledobject")
    )
    name = deployment["metadata"]["name"]

    assert "replicas" not in deployment["spec"]
    assert hpa["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    assert scaled["spec"]["scaleTargetRef"] == {"kind": "Deployment", "name": name}
    assert hpa["spec"]["minReplicas"] == scaled["spec"]["minReplicaCount"] == 2
    assert hpa["spec"]["maxReplicas"] == scaled["spec"]["maxReplicaCount"]
    assert one("poddisruptionbudget.yaml")["spec"]["maxUnavailable"] < hpa["spec"]["minReplicas"]

    metrics = one("horizontalpodautoscaler.yaml")["spec"]["metrics"]

    assert [metric["type"] for metric in metrics] == ["Resource"]

    folder = manifests.ROOT / "deploy" / "queue-metric"
    request = set(re.findall(r"modelserver_\w+", (folder / "kustomization.yaml").read_text(encoding="utf-8")))
    for trigger in one("scaledobject.yaml")["spec"]["triggers"]:
        request |= set(re.findall(r"modelserver_\w+", trigger["metadata"]["query"]))
    adapter = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]

    assert request == {"modelserver_queue_requests", "modelserver_batches_in_flight"}
    assert request <= manifests.gauges()
    assert re.findall(r"modelserver_\w+", rule["seriesQuery"]) == ["modelserver_queue_requests"]

    pods = [
        re.findall(r'pod=~"([^"]+)"', trigger["metadata"]["query"])
        for trigger in one("scaledobject.yaml")["spec"]["triggers"]
    ]

    assert [bool(re.fullmatch(result[0], "modelserver-6d4cf56db6-x2v7p")) for result in pods] == [True, True]
