import asyncio
import json

import pytest
from tests.models.conftest import entry, register, restore, saved

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import BadRequest, ConfigError, InvalidModel, ModelNotFound
from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.router import TrafficRouter
from modelserver.ext.rollout.traffic import ModelTraffic
from modelserver.ext.snapshots.document import check_routes, parse_snapshot

HALVES = {"1.0": 50, "2.0": 50}


@pytest.fixture
async def router(registry):
    registry.router = router = TrafficRouter(registry, ServerMetrics(hostname="h"))
    return router


@pytest.fixture(autouse=True)
async def versions(registry, router):
    """Versions 1.0 and 2.0 of model m, with workers that are ready."""
    made = [await register(registry, f"m-{number}.0.mar") for number in (1, 2)]
    yield made
    for model in registry.versions():
        if model.traffic is not None:
            model.traffic.close()


def traffic_in(registry):
    traffic = registry.get("m").traffic
    assert isinstance(traffic, ModelTraffic)
    return traffic


def plan_of(registry):
    """A plan with the same values for all versions."""
    (traffic,) = {id(model.traffic): model.traffic for model in registry.versions("m")}.values()
    return None if traffic is None else traffic_in(registry).plan


async def test_all_versions_have_the_same_traffic(registry, router):
    saved = []

    async def save():
        await asyncio.sleep(0)
        saved.append(plan_of(registry))

    registry.on_change = save
    await router.change("m", HALVES)
    await register(registry, "m-3.0.mar")
    await router.drop("m")

    assert saved == [Plan(HALVES), Plan(HALVES), None]


@pytest.mark.parametrize("document", [{"1.0": 90}, {"3.0": 100}, {"promote": {}}])
async def test_a_plan_that_is_refused_changes_nothing(registry, router, document):
    with pytest.raises(BadRequest):
        await router.change("m", document)
    assert plan_of(registry) is None

    await router.change("m", HALVES)
    with pytest.raises(BadRequest):
        await router.change("m", document)
    assert plan_of(registry) == Plan(HALVES)


async def test_unknown_models_have_no_traffic(registry, router):
    with pytest.raises(ModelNotFound):
        await router.change("none", HALVES)
    with pytest.raises(ModelNotFound):
        await router.drop("none")


async def test_weights_set_by_hand_end_a_promotion(registry, router):
    promote = {"errors": 0.1}
    await router.change("m", {"weights": HALVES, "promote": promote})
    await router.change("m", {"sticky": "x-user"})
    traffic = traffic_in(registry)
    assert traffic.plan.promote is not None

    await router.change("m", {"1.0": 10, "2.0": 90})
    assert (traffic.plan.promote, traffic.promotion.reason) == (None, "weights were set")
    await router.change("m", {"weights": HALVES, "promote": promote})
    assert traffic.plan.promote is not None


async def test_a_promotion_that_moves_weights_is_saved(registry, router):
    saved = asyncio.Event()

    async def save():
        saved.set()

    await router.change("m", {"weights": HALVES, "promote": {"after": 1, "errors": 0.5}})
    registry.on_change = save
    traffic = traffic_in(registry)
    traffic.promoter.copied(failed=False, seconds=0.1, agreed=None)
    traffic._look_again()
    await asyncio.wait_for(saved.wait(), 5)

    assert traffic.plan.weights == {"1.0": 0, "2.0": 100}


async def test_a_version_that_is_unregistered_leaves_its_weight(registry, router):
    await router.change("m", HALVES)
    await registry.unregister("m", "2.0")
    assert plan_of(registry) == Plan({"1.0": 100})

    await registry.unregister("m", None)
    await register(registry, "m-1.0.mar")
    assert plan_of(registry) is None


async def test_a_model_is_ready_if_one_that_gets_requests_is(registry, router, versions):
    await router.change("m", {"1.0": 0, "2.0": 100})
    versions[0].pool.ready = False

    assert registry.is_ready("m")
    assert not registry.is_ready("m", "1.0")
    versions[1].pool.ready = False
    assert not registry.is_ready("m")


@pytest.mark.parametrize(
    ("stateful", "document", "message"),
    [
        (("1.0",), HALVES, "weights: requests of some of the versions belong to sequences"),
        (("1.0", "2.0"), HALVES, ""),
        (
            ("2.0",),
            {"shadow": {"2.0": {"percent": 5}}},
            "shadow: requests of version 2.0 belong to sequences",
        ),
    ],
)
async def test_sequences_are_not_divided(registry, router, versions, stateful, document, message):
    for model in versions:
        model.sequence_headers = object() if model.version in stateful else None
    if not message:
        await router.change("m", document)
        return
    with pytest.raises(BadRequest) as refused:
        await router.change("m", document)

    assert refused.value.message.startswith(message)


async def test_a_file_may_set_it(registry, builder, caplog):
    builder.options = {"traffic": {"2.0": 50, "4.0": 50}}
    await register(registry, "m-3.0.mar")
    assert plan_of(registry) is None
    assert "m 3.0: traffic in its model-config.yaml: weights: version 4.0 is not registered" in caplog.text

    await register(registry, "m-4.0.mar")
    assert plan_of(registry) == patched(Plan(), builder.options["traffic"])


async def test_a_file_ends_a_promotion(registry, router, builder):
    await router.change("m", {"weights": HALVES, "promote": {"errors": 0.1}})
    builder.options = {"traffic": {"2.0": 50, "3.0": 50}}
    model = await register(registry, "m-3.0.mar")

    traffic = model.traffic
    assert traffic.promotion.state == "stopped"
    assert traffic.promotion.reason.startswith("3.0 was registered")


async def test_a_file_with_traffic_that_cannot_be(registry, builder):
    builder.options = {"traffic": {"1.0": 90, "3.0": 20}}
    with pytest.raises(
        InvalidModel, match=r"m-3.0.mar: model-config.yaml: traffic: weights: they add up to 110"
    ):
        await register(registry, "m-3.0.mar")

    assert ("m", "3.0") not in registry
    builder.options = {}
    await register(registry, "m-3.0.mar")


def routed(registry):
    registry.router = TrafficRouter(registry, ServerMetrics(hostname="h"))
    return registry


async def test_snapshot_decides_the_traffic(new_registry, store, caplog):
    file = "traffic: {1.0: 100}\n"
    for name in "ab":
        manifest = store / name / "MAR-INF" / "MANIFEST.json"
        content = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**content, "model": {**content["model"], "configFile": "c.yaml"}}))
        (store / name / "c.yaml").write_text(file)
    sticky = {"weights": {"1.0": 100}, "sticky": "x-user"}
    items = saved(a={"1.0": entry("a", traffic=sticky)}, b={"1.0": entry("b")})
    registry = await restore(routed(new_registry()), items)
    result = {model.name: model.traffic and model.traffic.state for model in registry.versions()}
    await registry.close(0)
    other = await restore(routed(new_registry()), saved(b={"1.0": entry("b", traffic={"7.0": 100})}))
    await other.close(0)

    assert result == {"a": sticky, "b": None}
    assert "The traffic of b is not restored: weights: version 7.0 is not registered" in caplog.text


def test_state_that_no_versions_could_have_is_refused(router):
    node = {"defaultVersion": "1.0", "traffic": {"1.0": 50}}
    for state, problem in (
        ({"models": {"a": {"1": {"marName": "a", "traffic": {"1": "x"}}}}}, "models.a.1.traffic: The"),
        ({"workflows": {"w": {"url": "w", "nodes": {"n": node}}}}, "workflows.w.nodes.n.traffic: weights: "),
    ):
        with pytest.raises(ConfigError, match=f"model_snapshot: {problem}"):
            check_routes(parse_snapshot(json.dumps(state)), router.check)
