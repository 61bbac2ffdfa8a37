import json
from types import SimpleNamespace

import httpx
import jsonschema
import pytest
from tests.documents import schema_of
from tests.ext.rollout.doubles import Version

from modelserver.errors import BadRequest
from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.routes import add_routes, describe_shadows, describe_traffic
from modelserver.ext.rollout.shadow import Difference
from modelserver.ext.rollout.traffic import ModelTraffic
from modelserver.surface.api.application import Application
from modelserver.surface.http.answers import pretty

WHOLE = {
    "weights": {"1.0": 90, "2.0": 10},
    "sticky": "x-user",
    "shadow": {"2.0": {"percent": 25, "compare": "numeric", "tolerance": 0.1}},
    "promote": {
        "after": 5,
        "agreement": 1.0,
        "p99_ratio": 2.0,
        "errors": 0.1,
        "steps": [5],
        "version": "2.0",
    },
}


@pytest.fixture
async def model():
    versions = {name: Version(name) for name in ("1.0", "2.0")}
    traffic = ModelTraffic("m")
    traffic.follow(versions, "1.0")
    traffic.adopt(patched(Plan(), WHOLE))
    versions["1.0"].traffic = traffic
    yield versions["1.0"]
    traffic.close()


def named(schema):
    """The schema, whose objects have no other fields than it names."""
    if not isinstance(schema, dict):
        return schema
    remaining = {key: named(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        return {"additionalProperties": False, **remaining}
    return remaining


async def test_traffic_is_described_with_and_without_weights(model):
    description = json.loads(pretty(describe_traffic(model)))

    assert {part: description[part] for part in WHOLE} == WHOLE
    assert description["effective"] == {"1.0": 90, "2.0": 10}
    assert description["promotion"]["state"] == "watching"
    jsonschema.validate(description, named(schema_of("management", "Traffic")))
    jsonschema.validate(WHOLE, named(schema_of("management", "TrafficChange")))

    model.traffic.close()
    model.traffic = None
    assert describe_traffic(model) == {"modelName": "m", "default": "1.0", "effective": {"1.0": 100}}

    model.pool.fail_workers()
    assert describe_traffic(model)["effective"] == {"1.0": 0}
    assert describe_shadows(model) == {"modelName": "m", "shadows": {}}


async def test_shadows_are_reported_with_their_last_differences(model):
    shadow = model.traffic.shadows["2.0"]
    shadow.count("agreed", 3)
    shadow.count("differed")
    shadow.counts.latencies.add(0.5)
    shadow.counts.primary_latencies.add(0.25)
    shadow.counts.batch_sizes, shadow.counts.primary_batch_sizes = 8, 2
    bodies = b"question", b"\xff", b"answer"
    for number in range(2):
        shadow.differences.append(
            Difference(f"r{number}", "why", (200, 503), (0.1, 0.2), (("a", 1), ("b", 2)), bodies)
        )
    description = json.loads(pretty(describe_shadows(model)))
    got = description["shadows"]["2.0"]

    assert got["agreement"] == 0.75
    assert got["batchSize"] == {"primary": 2, "shadow": 8}
    assert got["latency"]["shadow"]["p50"] == pytest.approx(500, rel=0.05)
    assert [each["requestId"] for each in got["differences"]] == ["r1", "r0"]
    assert got["differences"][0]["bodies"] == {"request": "question", "primary": "\ufffd", "shadow": "answer"}
    jsonschema.validate(description, named(schema_of("management", "Shadows")))


async def test_routes_change_what_they_say(model):
    calls = []

    async def change(name, document):
        calls.append((name, document))

    async def drop(name):
        calls.append(name)

    registry, router = SimpleNamespace(get=lambda _: model), SimpleNamespace(change=change, drop=drop)
    app = Application()
    add_routes(app, SimpleNamespace(registry=registry), router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [
            await client.get("/models/m/traffic"),
            await client.delete("/models/m/traffic"),
            await client.get("/models/m/shadow"),
        ]
        await client.put("/models/m/traffic", json={"1.0": 100})
        for body in (b"", b"{", b"[]"):
            with pytest.raises(BadRequest):
                await client.put("/models/m/traffic", content=body)

    assert [answer.status_code for answer in answers] == [200] * 3
    assert calls == ["m", ("m", {"1.0": 100})]
