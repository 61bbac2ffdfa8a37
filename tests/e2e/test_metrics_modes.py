"""Where metrics go, and which there are (reference 15)."""

import sys

import pytest
from tests.e2e.serving import Home, Server, archived, serving, wait_until

HANDLER = """
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None:
        return None
    context.metrics.get_metric("Words", MetricTypes.COUNTER).add_or_update(2, [context.model_name, "Model"])
    context.metrics.add_counter("Unlisted", 1)
    return ["x"] * len(data)
"""
LIST = """
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [Level, Hostname]}
  gauge:
    - {name: CPUUtilization, unit: Percent, dimensions: [Level, Hostname]}
model_metrics:
  counter:
    - {name: Words, unit: count, dimensions: [ModelName, Level]}
"""
COLLECTOR = "print('CPUUtilization.Percent:12.5|#Level:Host|#hostname:h,timestamp:1')\n"


@pytest.fixture
def store(tmp_path):
    made = tmp_path / "store"
    made.mkdir()
    archived(made, "words", HANDLER)
    return made


@pytest.fixture
def listed(tmp_path):
    (tmp_path / "metrics.yaml").write_text(LIST)
    (tmp_path / "collect.py").write_text(COLLECTOR)
    command = f"{tmp_path / 'collect.py'} --gpu 0"
    collector = {"system_metrics_cmd": command, "python": sys.executable}
    return {"metrics_config": tmp_path / "metrics.yaml", **collector}


def test_list_decides_which_metrics_are_served(tmp_path, store, listed):
    """``metrics_config`` says what is shown; handlers find its metrics, and ``name[]`` chooses among them."""
    with serving(Server(Home(tmp_path / "home"), store, settings=listed)) as server:
        server.registered("words.mar")
        assert server.predict("words").status_code == 200
        assert server.predict("words").status_code == 200
        assert server.metric("Words", ModelName="words", Level="Model") == 4
        wait_until(lambda: server.metric("CPUUtilization") == 12.5, "the collector was read")
        text = server.metrics.get("/metrics").text
        assert "Unlisted" not in text
        assert "ts_inference_requests_total" not in text
        chosen = server.metrics.get("/metrics", params={"name[]": ["Words", "Requests2XX"]}).text
        lines = [line for line in chosen.splitlines() if line[0] != "#"]
        assert {line.partition("{")[0] for line in lines} == {"Words", "Requests2XX"}
