from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.models.conftest import register

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import BadRequest, InvalidModel, ModelNotFound
from modelserver.ext.rollout.plan import Plan, patched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.models.doubles import Preparation

    from modelserver.models.registry import Registry

HALVES = {"1.0": 50, "2.0": 50}


@pytest.fixture(autouse=True)
async def versions(registry: Registry, preparation: Preparation) -> Any:
    """Versions 1.0 and 2.0 of model m, with workers that are ready."""
    preparation.metrics, preparation.shadow_bodies = ServerMetrics(hostname="h"), 0
    made = [await register(registry, f"m-{number}.0.mar") for number in (1, 2)]
    yield made
    for model in registry.versions():
        if model.traffic is not None:
            model.traffic.close()


def plan_of(registry: Registry) -> Plan | None:
    plans = {id(model.traffic): model.traffic for model in registry.versions("m")}
    (traffic,) = plans.values()
    return None if traffic is None else traffic.plan


async def test_all_versions_have_the_same_traffic(registry: Registry) -> None:
    """Also one that comes later; each change is saved."""
    saved: list[Plan | None] = []

    async def save() -> None:
        await asyncio.sleep(0)
        saved.append(plan_of(registry))

    registry.on_change = save
    await registry.change_traffic("m", HALVES)
    await register(registry, "m-3.0.mar")
    await registry.drop_traffic("m")

    assert saved == [Plan(HALVES), Plan(HALVES), None]


@pytest.mark.parametrize("document", [{"1.0": 90}, {"3.0": 100}, {"promote": {}}])
async def test_a_plan_that_is_refused_changes_nothing(registry: Registry, document: Any) -> None:
    """With or without one before."""
    with pytest.raises(BadRequest):
        await registry.change_traffic("m", document)
    assert plan_of(registry) is None

    await registry.change_traffic("m", HALVES)
    with pytest.raises(BadRequest):
        await registry.change_traffic("m", document)
    assert plan_of(registry) == Plan(HALVES)


async def test_unknown_models_have_no_traffic(registry: Registry) -> None:
    """It cannot be changed nor dropped."""
    with pytest.raises(ModelNotFound):
        await registry.change_traffic("none", HALVES)
    with pytest.raises(ModelNotFound):
        await registry.drop_traffic("none")


async def test_weights_set_by_hand_end_a_promotion(registry: Registry) -> None:
    """Other parts do not, nor do weights that come with one."""
    promote = {"errors": 0.1}
    await registry.change_traffic("m", {"weights": HALVES, "promote": promote})
    await registry.change_traffic("m", {"sticky": "x-user"})
    traffic = registry.get("m").traffic
    assert traffic is not None
    assert traffic.plan.promote is not None

    await registry.change_traffic("m", {"1.0": 10, "2.0": 90})
    assert traffic.promotion is not None
    assert (traffic.plan.promote, traffic.promotion.reason) == (None, "weights were set")
    await registry.change_traffic("m", {"weights": HALVES, "promote": promote})
    assert traffic.plan.promote is not None


async def test_a_promotion_that_moves_weights_is_saved(registry: Registry) -> None:
    """As if an operator had moved them."""
    saved = asyncio.Event()

    async def save() -> None:
        saved.set()

    await registry.change_traffic("m", {"weights": HALVES, "promote": {"after": 1, "errors": 0.5}})
    registry.on_change = save
    traffic = registry.get("m").traffic
    assert traffic is not None
    assert traffic.promoter is not None
    traffic.promoter.copied(failed=False, seconds=0.1, agreed=None)
    traffic._look_again()
    await asyncio.wait_for(saved.wait(), 5)

    assert traffic.plan.weights == {"1.0": 0, "2.0": 100}


async def test_a_default_gets_everything(registry: Registry) -> None:
    """The weights are gone."""
    await registry.change_traffic("m", {"weights": HALVES, "sticky": "x-user"})
    await registry.set_default("m", "2.0")

    assert plan_of(registry) == Plan(sticky="x-user")
    assert registry.get("m").version == "2.0"


async def test_a_version_that_is_unregistered_leaves_its_weight(registry: Registry) -> None:
    """To the others; with the last one the traffic is gone."""
    await registry.change_traffic("m", HALVES)
    await registry.unregister("m", "2.0")
    assert plan_of(registry) == Plan({"1.0": 100})

    await registry.unregister("m", None)
    await register(registry, "m-1.0.mar")
    assert plan_of(registry) is None


async def test_a_model_is_ready_if_one_that_gets_requests_is(
    registry: Registry, versions: Sequence[Any]
) -> None:
    """A version is ready only itself."""
    await registry.change_traffic("m", {"1.0": 0, "2.0": 100})
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
async def test_sequences_are_not_divided(
    registry: Registry, versions: Sequence[Any], stateful: Sequence[str], document: Any, message: str
) -> None:
    """All versions that get requests have them, or none, and they cannot be copied."""
    for model in versions:
        model.sequence_headers = object() if model.version in stateful else None
    if not message:
        await registry.change_traffic("m", document)
        return
    with pytest.raises(BadRequest) as refused:
        await registry.change_traffic("m", document)

    assert refused.value.message.startswith(message)


async def test_a_file_may_set_it(
    registry: Registry, preparation: Preparation, caplog: pytest.LogCaptureFixture
) -> None:
    """Once all versions that it names are there; before that there is a warning."""
    preparation.options = {"traffic": {"2.0": 50, "4.0": 50}}
    await register(registry, "m-3.0.mar")
    assert plan_of(registry) is None
    assert "m 3.0: traffic in its model-config.yaml: weights: version 4.0 is not registered" in caplog.text

    await register(registry, "m-4.0.mar")
    assert plan_of(registry) == patched(Plan(), preparation.options["traffic"])


async def test_a_file_ends_a_promotion(registry: Registry, preparation: Preparation) -> None:
    """Which says so."""
    await registry.change_traffic("m", {"weights": HALVES, "promote": {"errors": 0.1}})
    preparation.options = {"traffic": {"2.0": 50, "3.0": 50}}
    model = await register(registry, "m-3.0.mar")

    assert model.traffic is not None
    assert model.traffic.promotion is not None
    assert model.traffic.promotion.state == "stopped"
    assert model.traffic.promotion.reason.startswith("3.0 was registered")


async def test_a_file_with_traffic_that_cannot_be(registry: Registry, preparation: Preparation) -> None:
    """Is refused, as other files with such values are, and nothing stays."""
    preparation.options = {"traffic": {"1.0": 90, "3.0": 20}}
    with pytest.raises(
        InvalidModel, match=r"m-3.0.mar: model-config.yaml: traffic: weights: they add up to 110"
    ):
        await register(registry, "m-3.0.mar")

    assert not registry.has("m", "3.0")
    preparation.options = {}
    await register(registry, "m-3.0.mar")
