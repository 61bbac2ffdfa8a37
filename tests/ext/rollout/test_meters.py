from tests.ext.rollout.doubles import Version

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.rollout.meters import Meters
from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.traffic import ModelTraffic


async def test_traffic_is_rendered_as_long_as_there_is_any():
    traffic = ModelTraffic("m")
    traffic.follow({name: Version(name) for name in ("1.0", "2.0")}, "1.0")
    parts = {"weights": {"1.0": 90, "2.0": 10}, "shadow": {"2.0": {"percent": 5}}, "promote": {"errors": 0.1}}
    traffic.adopt(patched(Plan(), parts))
    traffic.requests["2.0"].value += 3
    item, metrics = [traffic], ServerMetrics(hostname="h")
    Meters(metrics, lambda: item)

    text = b"".join(metrics.pieces()).decode()
    labels = 'model_name="m",model_version="2.0"'
    assert f"modelserver_traffic_weight{{{labels}}} 10.0" in text
    assert f"modelserver_traffic_requests_total{{{labels}}} 3.0" in text
    assert f'modelserver_shadow_copies_total{{{labels},outcome="agreed"}} 0.0' in text
    traffic.promotion.decisions["errors"] += 1
    text = b"".join(metrics.pieces()).decode()
    for why, steps in (('direction="on",reason="kept"', 0), ('direction="back",reason="errors"', 1)):
        assert f"modelserver_promotion_steps_total{{{labels},{why}}} {steps}.0" in text

    traffic.close()
    item.clear()
    assert "modelserver_traffic_weight{" not in b"".join(metrics.pieces()).decode()
