"""``deploy/prometheus``: each alert fires for its cause and for nothing else, as Prometheus evaluates it."""

import json
import shutil
import subprocess

import pytest
import yaml
from tests.deploy.manifests import KUBERNETES, ROOT, container, in_folder, resources
from tests.deploy.schemas import problems

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
OPERATOR = RULES.parent / "operator"
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]

# One value each 15 s, for 20 minutes.
STEPS = 80
FALSE, TRUE = f"0+0x{STEPS}", f"1+0x{STEPS}"
MANY, FEW, NONE = f"0+100x{STEPS}", f"0+5x{STEPS}", FALSE

POD = 'namespace="ml", pod="modelserver-a", instance="10.0.0.7:8082"'
MODEL = f'{POD}, model_name="mnist", model_version="1.0"'
SCRAPED = {f'up{{job="modelserver", {POD}}}': TRUE}
# Series of kubelet's probes while a model loads, which may not raise an alert.
PROBES = {
    f'Requests5XX{{Level="Host", Hostname="h", {POD}}}': MANY,
    f'Requests4XX{{Level="Host", Hostname="h", {POD}}}': NONE,
    f'Requests2XX{{Level="Host", Hostname="h", {POD}}}': FEW,
    f'modelserver_health_checks_total{{path="/v2/health/ready", code="5xx", {POD}}}': MANY,
}
# Series of a model that works, beside one that serves seldom.
WORKING = {
    f'modelserver_requests_total{{code="2xx", {MODEL}}}': MANY,
    f'modelserver_requests_total{{code="4xx", {MODEL}}}': MANY,
    f'modelserver_requests_total{{code="5xx", {MODEL}}}': NONE,
    f"modelserver_failing{{{MODEL}}}": FALSE,
    f'modelserver_rejected_total{{reason="requests", {MODEL}}}': NONE,
    f'modelserver_workers{{state="ready", {MODEL}}}': TRUE,
    f'modelserver_workers{{state="failed", {MODEL}}}': FALSE,
    f"modelserver_expired_total{{{MODEL}}}": NONE,
}
CAUSES = {
    "ModelserverErrors": {f'modelserver_requests_total{{code="5xx", {MODEL}}}': FEW},
    "ModelserverFailing": {f"modelserver_failing{{{MODEL}}}": TRUE},
    "ModelserverNoWorker": {f'modelserver_workers{{state="ready", {MODEL}}}': FALSE}
    | {f'modelserver_workers{{state="loading", {MODEL}}}': TRUE},
    "ModelserverWorkersFail": {f'modelserver_workers{{state="failed", {MODEL}}}': TRUE},
    "ModelserverLoadsFail": {f'modelserver_loads_total{{result="failed", {MODEL}}}': FEW},
    "ModelserverRefuses": {f'modelserver_rejected_total{{reason="requests", {MODEL}}}': FEW},
    "ModelserverQueueSlow": {
        f'modelserver_queue_seconds_bucket{{le="1.0", {MODEL}}}': NONE,
        f'modelserver_queue_seconds_bucket{{le="2.5", {MODEL}}}': MANY,
        f'modelserver_queue_seconds_bucket{{le="+Inf", {MODEL}}}': MANY,
    },
    "ModelserverWantsWorkers": {f"modelserver_workers_wished{{{MODEL}}}": f"2+0x{STEPS}"},
    "ModelserverDeadlines": {f"modelserver_expired_total{{{MODEL}}}": FEW},
    "ModelserverDown": {f'up{{job="modelserver", {POD}}}': FALSE},
    "ModelserverMemory": {f'MemoryUtilization{{Level="Host", Hostname="h", {POD}}}': f"95+0x{STEPS}"},
    "ModelserverDisk": {f'DiskUtilization{{Level="Host", Hostname="h", {POD}}}': f"95+0x{STEPS}"},
}
OF_HOSTS = {"ModelserverDown", "ModelserverMemory", "ModelserverDisk"}


def firing(folder, series, *expected):
    """Checks with promtool that these alerts fire after 19 minutes, with these labels, and no others."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    labels = "alertname, namespace, pod, model_name, model_version"
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count by ({labels}) (ALERTS{{alertstate="firing"}})',
                        "eval_time": "19m",
                        "exp_samples": [{"labels": each, "value": 1} for each in expected],
                    }
                ],
            }
        ],
    }
    path = folder / "test.json"
    path.write_text(json.dumps(test))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def named(alert, *, of_model):
    """The labels by which an alert says where it is."""
    model = 'model_name="mnist", model_version="1.0", ' if of_model else ""
    return f'{{alertname="{alert}", {model}namespace="ml", pod="modelserver-a"}}'


def test_every_alert_has_a_cause_here():
    assert sorted(CAUSES) == sorted(ALERTS)


def test_probes_raise_no_alert(tmp_path):
    """A pod whose models load for twenty minutes, and whose probes all fail, has no request that failed."""
    firing(tmp_path, SCRAPED | PROBES | WORKING)


@pytest.mark.parametrize("alert", CAUSES)
def test_an_alert_fires_for_its_cause(alert, tmp_path):
    series = SCRAPED | PROBES | WORKING | CAUSES[alert]

    firing(tmp_path, series, named(alert, of_model=alert not in OF_HOSTS))


def test_errors_of_a_small_model_are_not_hidden_by_a_large_one(tmp_path):
    small = MODEL.replace("mnist", "small")
    series = {
        f'modelserver_requests_total{{code="2xx", {small}}}': NONE,
        f'modelserver_requests_total{{code="5xx", {small}}}': f"0+0.01x{STEPS}",
    }
    alert = named("ModelserverErrors", of_model=True).replace("mnist", "small")
    firing(tmp_path, SCRAPED | WORKING | series, alert)


@pytest.mark.parametrize(
    "labels",
    [
        'job="modelserver"',
        'job="modelserver-on-ray"',
        'job="kubernetes-pods", app_kubernetes_io_name="modelserver"',
    ],
)
def test_a_server_that_is_down_raises_the_alert_however_it_is_scraped(labels, tmp_path):
    """By a static target or a PodMonitor, whose job is a name; by annotations, whose job is the cluster's."""
    series = {f"up{{{labels}, {POD}}}": FALSE, f'up{{job="other", {POD}}}': FALSE}
    firing(tmp_path, series, named("ModelserverDown", of_model=False))


@pytest.mark.parametrize("name", [name for name, _ in in_folder(OPERATOR) if "Kustomization" not in name])
def test_resources_keep_to_the_published_schema(name):
    assert problems(dict(in_folder(OPERATOR))[name]) == []


def test_the_operators_rules_are_the_same():
    text = (OPERATOR / "prometheusrule.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))


def test_the_pod_monitor_finds_the_pods():
    (monitor,) = resources(OPERATOR / "podmonitor.yaml")
    (named,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for folder in (KUBERNETES, ROOT / "deploy" / "ray"):
        (deployment,) = resources(folder / "deployment.yaml")
        template = deployment["spec"]["template"]
        ports = {port["name"]: port["containerPort"] for port in container(template["spec"])["ports"]}

        assert template["metadata"]["labels"][monitor["spec"]["jobLabel"]] in named["values"]
        assert str(ports[endpoint["port"]]) == template["metadata"]["annotations"]["prometheus.io/port"]
    assert named["key"] == monitor["spec"]["jobLabel"]
    (kustomization,) = resources(OPERATOR / "kustomization.yaml")
    assert set(kustomization["resources"]) == {"podmonitor.yaml", "prometheusrule.yaml"}
