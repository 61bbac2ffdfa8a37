"""The files of ``deploy/``: what they ask Prometheus for is what the server shows."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from modelserver.engine.telemetry.gpus import GpuReading
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.system import SystemReading
from modelserver.errors import InternalError
from modelserver.ext.parking.meters import ParkingMeters

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "modelserver.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text(encoding="utf-8"))
SCRAPE = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))

# Labels that Prometheus adds to each series, and its own metric.
ADDED_LABELS = {"instance", "job", "namespace", "pod"}
OWN = {"up": {"instance", "job", "app_kubernetes_io_name"}}


def visible():
    """The sample names that a busy server shows, each with its labels."""
    metrics = ServerMetrics(hostname="h")
    metrics.system(SystemReading(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, (GpuReading(0, 1.0, 1.0, 1.0, 1.0),)))
    metrics.response(200)
    metrics.response(200, "/livez")
    model = metrics.model("m", "1.0")
    model.requests.received(explicit_version=True)
    model.requests.failed(InternalError("no"), "r")
    model.workers.set_states({"ready": 1})
    model.workers.set_wish(2)
    model.workers.count("scalings_total", "up", "queue_wait")
    model.workers.count("worker_failures_total", "WorkerDied")
    model.workers.loaded("W-9000-m_1.0", 1.0)
    on_demand(metrics)
    result = {}
    for line in b"".join(metrics.pieces()).decode().splitlines():
        if not line.startswith("#"):
            name, _, labels = line.partition(" ")[0].partition("{")
            result[name] = set(re.findall(r"(\w+)=", labels))
    return result


def on_demand(metrics):
    """A model was loaded, has failed to load, and was parked."""
    meters = ParkingMeters(metrics)
    crew = SimpleNamespace(
        leaving=(), spec=SimpleNamespace(ranks=None), devices=SimpleNamespace(peek=lambda _: None)
    )
    visible_metrics = SimpleNamespace(series=SimpleNamespace(is_hidden=False))
    model = SimpleNamespace(name="m", version="1.0", metrics=visible_metrics)
    pool = SimpleNamespace(workers=(), min_workers=0, crew=crew)
    resident = SimpleNamespace(model=model, memory=1, pool=pool, state="loaded")
    meters.show([resident], lambda: 1.0)
    meters.loaded(model, 1, 1.0)
    meters.failed(model)
    meters.parked(model, "idle")


def rules(kind):
    """The rules that record, or those that alert."""
    return [rule for group in RULES["groups"] for rule in group["rules"] if kind in rule]


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def recorded():
    """The recorded names; their labels are those that they are summed by."""
    names = {}
    for rule in rules("record"):
        (by, *_) = re.findall(r"by \(([^)]*)\)", rule["expr"])
        names[rule["record"]] = {label.strip() for label in by.split(",")}
    return names


KNOWN = {**visible(), **OWN, **recorded()}


def names_in(expression):
    text = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)', " ", expression)
    text = re.sub(r"\b\d[\w.]*", " ", text)
    return {
        name for name in re.findall(r"[A-Za-z_:][\w:]*(?!\s*\(|[\w:])", text) if name not in {"and", "or"}
    }


def labels_in(expression):
    """The labels that an expression selects or sums by."""
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    summed = [
        label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
    ]
    return {*selected, *summed}


EXPRESSIONS = {
    **{f"{p['title']} {t['refId']}": t["expr"] for p in panels() for t in p["targets"]},
    **{rule.get("alert") or rule["record"]: rule["expr"] for rule in (*rules("alert"), *rules("record"))},
}


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_expressions_name_what_there_is(place):
    expression = EXPRESSIONS[place]
    names = names_in(expression)

    assert names
    assert names <= KNOWN.keys()
    for name in names:
        assert labels_in(expression) <= KNOWN[name] | ADDED_LABELS, name


def test_legends_and_annotations_name_labels_that_are_left():
    for panel in panels():
        for target in panel["targets"]:
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            summed = re.findall(r"by \(([^)]*)\)", target["expr"])
            stored = (
                {label.strip() for label in summed[0].split(",")}
                if summed
                else set().union(*(KNOWN[name] for name in names_in(target["expr"])))
            )
            assert legend <= stored, panel["title"]

    for rule in rules("alert"):
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        summed = re.findall(r"by \(([^)]*)\)", rule["expr"])
        stored = {label.strip() for label in summed[0].split(",")} if summed else set()
        stored = stored or set().union(*(KNOWN[name] for name in names_in(rule["expr"]))) | ADDED_LABELS
        assert used <= stored, rule["alert"]


def test_everything_of_ours_is_on_the_dashboard_and_its_page():
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    used = set().union(*(names_in(t["expr"]) for p in panels() for t in p["targets"]))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    ours = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in visible() if name.startswith("modelserver_")
    }

    assert sorted(ours - families) == []
    assert [name for name in sorted(ours) if f"`{name}`" not in page] == []


def test_dashboard_is_well_made():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(at["x"] + x, at["y"] + y) for at in places for x in range(at["w"]) for y in range(at["h"])]

    assert len(set(ids)) == len(ids)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "instance", "model"}
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}


def test_rules_are_loaded_and_alerts_explained():
    (job,) = SCRAPE["scrape_configs"]

    assert SCRAPE["rule_files"] == ["rules.yml"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8082"]}]
    assert 'job=~"modelserver' in EXPRESSIONS["ModelserverDown"]
    assert job["job_name"] == "modelserver"
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert re.fullmatch(r"\d+m", rule["for"])
