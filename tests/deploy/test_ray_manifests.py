"""``deploy/ray``: KubeRay would take it, its parts fit together, and the server understands its settings."""

import re

import pytest
from tests.deploy.manifests import (
    RAY,
    ROOT,
    container,
    in_folder,
    not_restricted,
    resources,
    settings_of,
    unbounded_disk,
)
from tests.deploy.schemas import problems

from modelserver.run.cli import build_parser

_ALL = {name: resource for name, resource in in_folder(RAY) if resource["kind"] != "Kustomization"}
_TOKEN = "RAY_AUTH_TOKEN"
# The first Ray with tokens, and the first KubeRay that knows them is named in the manifest.
_FIRST_WITH_TOKENS = (2, 52)


def one(file):
    (result,) = resources(RAY / file)
    return result


def cluster():
    return one("raycluster.yaml")["spec"]


def groups():
    return [cluster()["headGroupSpec"], *cluster()["workerGroupSpecs"]]


def pod():
    return one("deployment.yaml")["spec"]["template"]["spec"]


def node():
    """The container that makes the server's pod a node of the cluster."""
    (result,) = pod()["initContainers"]
    return result


def labels():
    return one("deployment.yaml")["spec"]["template"]["metadata"]["labels"]


def in_the_pod(folder):
    return settings_of(folder, one("configmap.yaml")["data"]["config.properties"])


@pytest.mark.parametrize("name", _ALL)
def test_resources_keep_to_the_published_schema(name):
    assert problems(_ALL[name]) == []


def test_everything_is_applied_together():
    named = one("kustomization.yaml")["resources"]
    assert sorted([*named, "kustomization.yaml"]) == sorted(path.name for path in RAY.glob("*.yaml"))


def test_all_run_one_image_and_one_version_of_ray():
    """In an environment that a login shell finds, since KubeRay starts Ray in one."""
    everywhere = [container(group["template"]["spec"]) for group in groups()]

    assert {each["image"] for each in [*everywhere, node(), container(pod())]} == {"modelserver-ray:local"}

    recipe = (RAY / "Dockerfile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"(?m)^ARG RAY=(.+)$", recipe)

    assert cluster()["rayVersion"] == installed
    assert tuple(map(int, installed.split(".")[:2])) >= _FIRST_WITH_TOKENS

    recipe = (RAY / "Dockerfile").read_text(encoding="utf-8")
    servers = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    users = re.findall(r"(?m)^USER (\S+)$", recipe)

    assert users == ["root", re.findall(r"(?m)^USER (\S+)$", servers)[-1]]
    assert "echo 'PATH=/opt/venv/bin:$PATH' > /etc/profile.d/" in recipe
    assert "COPY --from=environment /opt/venv /opt/venv" in servers
    assert "ENTRYPOINT" not in recipe


def test_nobody_enters_the_cluster_without_its_token():
    """KubeRay creates the token, under the cluster's name; the server's pod presents it."""
    assert cluster()["authOptions"] == {"mode": "token"}
    for result in (node(), container(pod())):
        variables = {entry["name"]: entry for entry in result["env"]}
        assert variables["RAY_AUTH_MODE"]["value"] == "token"
        assert variables[_TOKEN]["valueFrom"]["secretKeyRef"] == {
            "name": one("raycluster.yaml")["metadata"]["name"],
            "key": "auth_token",
        }


def test_only_the_group_of_nodes_runs_workers(tmp_path):
    """Neither the head nor the server's pod offers anything; the group has GPUs, and may be empty. A worker
    that requests more than a node has would wait forever; the volume has room for an archive as large as the
    rest while it is unpacked.
    """
    head, group = groups()

    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert {"--num-cpus=0", "--num-gpus=0"} <= set(node()["args"])
    limits = container(group["template"]["spec"])["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert cluster()["enableInTreeAutoscaling"]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (0, 1, 8)

    demand = in_the_pod(tmp_path).settings.worker_resources
    limits = container(groups()[1]["template"]["spec"])["resources"]["limits"]

    assert demand == '{"num_cpus": 4, "num_gpus": 1}'
    assert int(limits["cpu"]) >= 4

    spec = groups()[1]["template"]["spec"]
    output = {entry["name"]: entry["value"] for entry in container(spec)["env"]}
    (volume,) = spec["volumes"]
    (mount,) = container(spec)["volumeMounts"]
    gibibytes = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))

    assert output["MODELSERVER_NODE_CACHE"].startswith(mount["mountPath"])
    assert output["MODELSERVER_CACHE"].startswith(mount["mountPath"])
    assert gibibytes << 30 > 2 * int(output["MODELSERVER_NODE_CACHE_SIZE"])


def test_the_servers_pod_is_the_only_one_and_a_node():
    """Ray's driver finds its process and its sockets, and KubeRay does not take the pod for its own. A second
    server, even while one is replaced, would request as many nodes again.
    """
    shared = {mount["mountPath"]: mount["name"] for mount in node()["volumeMounts"]}
    servers = {mount["mountPath"]: mount["name"] for mount in container(pod())["volumeMounts"]}

    assert node()["restartPolicy"] == "Always"
    assert pod()["shareProcessNamespace"]
    assert shared == {"/tmp": servers["/tmp"], "/dev/shm": servers["/dev/shm"]}
    assert "ray.io/cluster" not in labels()

    spec = one("deployment.yaml")["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_settings_are_the_servers(tmp_path):
    loaded = in_the_pod(tmp_path)
    address = f"{one('raycluster.yaml')['metadata']['name']}-head-svc:6379"

    assert loaded.warnings == ()
    assert loaded.settings.worker_launcher == "ray"
    assert loaded.settings.ray_address == address
    assert f"--address={address}" in node()["args"]
    assert build_parser().parse_args(container(pod())["args"]).no_config_snapshots


@pytest.mark.parametrize("name", ["local.properties", "machines.properties"])
def test_files_for_machines_are_the_servers_too(name, tmp_path):
    loaded = settings_of(tmp_path, (RAY / name).read_text(encoding="utf-8"))

    assert loaded.warnings == ()
    assert loaded.settings.worker_launcher == "ray"


def test_ports_are_those_of_the_settings(tmp_path):
    """Of the container, the Service and the policy; nodes reach the workers' address at the pod itself."""
    settings = in_the_pod(tmp_path).settings
    clients = {
        "http": settings.inference_address.port,
        "metrics": settings.metrics_address.port,
        "grpc": settings.grpc_inference_port,
    }
    workers = int(settings.worker_address.rpartition(":")[2])
    ingress = _ALL["networkpolicy.yaml: NetworkPolicy modelserver-on-ray"]["spec"]["ingress"]
    opened = {port["port"] for rule in ingress for port in rule.get("ports", ())}

    result = {port["name"]: port["containerPort"] for port in container(pod())["ports"]}
    assert result == {**clients, "workers": workers}
    assert {port["targetPort"]: port["port"] for port in one("service.yaml")["spec"]["ports"]} == clients
    assert opened == set(clients.values())


def test_only_pods_of_the_cluster_reach_ray_and_the_workers_address():
    """Any client of Ray may run code. Metrics are read by those who read the plain Deployment's."""
    name = one("raycluster.yaml")["metadata"]["name"]
    nodes = {"podSelector": {"matchLabels": {"ray.io/cluster": name}}}
    server = {"podSelector": {"matchLabels": labels()}}
    ours = _ALL["networkpolicy.yaml: NetworkPolicy modelserver-on-ray"]["spec"]
    rays = _ALL["networkpolicy.yaml: NetworkPolicy modelserver-ray"]["spec"]

    assert ours["podSelector"] == server["podSelector"]
    assert ours["ingress"][2:] == [{"from": [nodes]}]
    assert rays["podSelector"] == nodes["podSelector"]
    assert rays["ingress"] == [{"from": [nodes, server]}]

    (plain,) = resources(ROOT / "deploy" / "kubernetes" / "networkpolicy.yaml")
    inference, metrics, _ = _ALL["networkpolicy.yaml: NetworkPolicy modelserver-on-ray"]["spec"]["ingress"]

    assert [port["port"] for port in inference["ports"]] == [8080, 7070]
    assert [port["port"] for port in metrics["ports"]] == [8082]
    assert metrics["from"] == plain["spec"]["ingress"][1]["from"]


def test_pods_have_no_rights_that_they_do_not_need():
    specs = [pod(), *(group["template"]["spec"] for group in groups())]

    for spec in specs:
        assert not_restricted(spec) == []
        assert spec["securityContext"]["runAsUser"] == 1000
        assert spec["enableServiceLinks"] is False
    assert cluster()["autoscalerOptions"]["securityContext"] == container(pod())["securityContext"]

    for spec in (pod(), *(group["template"]["spec"] for group in groups())):
        assert unbounded_disk(spec) == []
