from __future__ import annotations

from typing import Any

from tests.ext.rollout.doubles import Version

from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.traffic import Traffic
from modelserver.surface.api.shares import describe_share, milliseconds


async def test_a_version_tells_its_part() -> None:
    """What it is to get and gets, and the promotion that it is part of."""
    versions: dict[str, Any] = {name: Version(name) for name in ("1.0", "2.0", "3.0")}
    traffic: Traffic[Any] = Traffic("m")
    traffic.follow(versions, "1.0")
    weights = {"weights": {"1.0": 60, "2.0": 40}, "shadow": {"3.0": {"percent": 5}}}
    traffic.adopt(patched(Plan(), {**weights, "promote": {"errors": 0.1, "version": "2.0"}}))
    versions["2.0"].pool.fail_workers()
    told: dict[str, dict[str, Any]] = {}
    for name, version in versions.items():
        version.traffic = traffic
        told[name] = describe_share(version) or {}
    traffic.close()

    assert {name: (each["wanted"], each["effective"], each["shadow"]) for name, each in told.items()} == {
        "1.0": (60, 100, None),
        "2.0": (40, 0, None),
        "3.0": (0, 0, 5),
    }
    assert told["3.0"]["promotion"] is None
    assert told["2.0"]["promotion"]["next"] == 50
    versions["1.0"].traffic = None
    assert describe_share(versions["1.0"]) is None


def test_milliseconds() -> None:
    """With three digits after the point."""
    assert (milliseconds(0.0123456), milliseconds(None)) == (12.346, None)
