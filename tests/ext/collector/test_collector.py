import sys

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.metrics_config import parse_metrics_config
from modelserver.errors import ConfigError
from modelserver.ext.collector.collector import CollectedMetric, Collector, command_of, parse_readings
from modelserver.ext.collector.extension import show
from modelserver.models.settings.settings import Settings

LINES = """
CPUUtilization.Percent:12.5|#Level:Host|#hostname:h,timestamp:1717102863
[METRICS]GPUMemoryUsed.Megabytes:100|#Level:Host,DeviceId:1|#type:GAUGE|#hostname:h,1717102863,
INFO > [METRICS]Own.Count:3|#|#hostname:h,1
no metric
DiskUsage.Gigabytes:much|#Level:Host|#hostname:h,1
DiskUsage.Gigabytes:nan|#Level:Host|#hostname:h,1
"""


def script(path, text):
    (path / "collect.py").write_text(text)
    return f"'{path / 'collect.py'}' --gpu 0"


def test_lines_are_parsed():
    """Lines in the format of reference 15.4 are read; all others are passed over."""
    assert list(parse_readings(LINES)) == [
        CollectedMetric("CPUUtilization", 12.5, {"Level": "Host"}),
        CollectedMetric("GPUMemoryUsed", 100.0, {"Level": "Host", "DeviceId": "1"}),
        CollectedMetric("Own", 3.0, {}),
    ]


async def test_lines_that_the_script_printed_are_read(tmp_path):
    """The script is run with its arguments, and what it printed before it failed counts."""
    text = "import sys\nprint('A.Count:%d|#|#hostname:h,1' % len(sys.argv))\nsys.exit(3)\n"
    collector = Collector(script(tmp_path, text), sys.executable)

    assert await collector.read() == [CollectedMetric("A", 3.0, {})]


async def test_collector_that_hangs_or_cannot_be_started_is_logged(tmp_path, caplog):
    collector = Collector(
        script(tmp_path, "input = __import__('time').sleep(60)"), sys.executable, timeout=0.2
    )

    assert await collector.read() == []
    assert "took longer than 0.2 s" in caplog.text

    assert await Collector("collect.py", "/no/such/python").read() == []
    assert "cannot be started" in caplog.text


@pytest.mark.parametrize("command", ["", "'open"])
def test_empty_command_is_refused(command):
    with pytest.raises(ConfigError, match="system_metrics_cmd"):
        Collector(command, sys.executable)


def test_collected_metrics_are_rendered():
    """What has a family is shown under its labels; the server's own metrics cannot be set from outside."""
    config = "ts_metrics: {gauge: [{name: CPUUtilization, unit: Percent, dimensions: [Level, Hostname]}],"
    config += " counter: [{name: Own, unit: Count, dimensions: [Hostname]}],"
    config += " histogram: [{name: H, unit: s, dimensions: []}]}"
    metrics = ServerMetrics(hostname="h", config=parse_metrics_config(config))
    metrics.model("m", "1.0")
    named = {"model_name": "m", "model_version": "1.0"}
    for name, value in (("CPUUtilization", 12.5), ("Own", 3.0), ("Own", -1.0), ("H", 2.0), ("Other", 1.0)):
        show(metrics, CollectedMetric(name, value, {"Level": "Host"}))
    show(metrics, CollectedMetric("modelserver_queue_requests", 77.0, named))
    text = b"".join(metrics.pieces()).decode()

    assert 'CPUUtilization{Level="Host",Hostname="h"} 12.5' in text
    assert 'Own{Hostname="h"} 3.0' in text
    assert "H_sum 2.0" in text
    assert "77" not in text
    assert "Other" not in text


def test_torchserves_own_collector_is_not_needed(tmp_path):
    """TorchServe's configurations name its collector; unless that file is here, the server reads itself."""
    there = tmp_path / "ts" / "metrics" / "metric_collector.py"
    for command in ("ts/metrics/metric_collector.py --gpu 0", f"{there} --gpu 0"):
        assert command_of(Settings(system_metrics_cmd=command)) is None
    own = "collect.py ts/metrics/metric_collector.py"
    assert command_of(Settings(system_metrics_cmd=own)) == own
    there.parent.mkdir(parents=True)
    there.touch()
    assert command_of(Settings(system_metrics_cmd=str(there))) == str(there)
