from types import SimpleNamespace

import pytest

from modelserver.engine.pools.devices import DeviceList, DeviceRing, find_devices, groups_of, look_again
from modelserver.errors import ConfigError


def readings(count=0, *, problem="", is_broken=False, answers=True):
    """The GPUs of a machine, as their driver shows them."""

    async def renew(patience=None):
        gpus.renewed += 1
        return answers

    gpus = SimpleNamespace(
        driver=SimpleNamespace(problem=problem, is_broken=is_broken),
        count=lambda most: count if most is None else min(count, most),
        renew=renew,
        renewed=0,
    )
    return gpus


@pytest.mark.parametrize(
    ("devices", "order"),
    [
        (DeviceRing(3), [1, 2, 0, 1, 2]),
        (DeviceRing(1), [0, 0, 0]),
        (DeviceList([2, 0]), [2, 0, 2]),
        (DeviceRing(0), [None, None]),
        (DeviceList(()), [None, None]),
    ],
    ids=["the second first", "everybody's", "as they are named", "no GPU", "none is named"],
)
def test_devices_are_assigned_in_turn(devices, order):
    """Across all models: those that exist from the second on, named ones from the first (reference 18.3)."""
    assert [devices.assign() for _ in order] == order


def test_groups_are_assigned_in_turn():
    """Workers of several devices take them in order; a rest that fills no group is left (reference 18.3)."""
    assert groups_of([0, 2, 5, 7, 8], 2) == [(0, 2), (5, 7)]
    assert groups_of(range(4), 4) == [(0, 1, 2, 3)]
    assert groups_of([0], 2) == []


@pytest.mark.parametrize(
    ("number", "count", "expected"), [(None, 2, 2), (1, 2, 1), (4, 2, 2), (0, 2, 0), (None, 0, 0)]
)
async def test_at_most_the_configured_gpus_are_used(number, count, expected, caplog):
    gpus = readings(count)

    assert (await find_devices(number, gpus=gpus)).count == expected
    assert gpus.renewed == (number != 0)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("number", "is_broken", "warning"),
    [
        (2, False, "number_of_gpu=2: no GPU is available, models run on the CPU: why"),
        (None, True, "no GPU is available, models run on the CPU: why"),
    ],
)
async def test_missing_gpus_are_warned_of(number, is_broken, warning, caplog):
    await find_devices(number, gpus=readings(problem="why", is_broken=is_broken))
    assert [record.getMessage() for record in caplog.records] == [warning]


@pytest.mark.parametrize(("number", "why"), [(None, "why"), (3, "why"), (0, "number_of_gpu=0")])
async def test_a_gpu_can_be_required(number, why):
    with pytest.raises(ConfigError, match=f"^require_gpu=true: no GPU is available: {why}$"):
        await find_devices(number, required=True, gpus=readings(problem="why"))
    assert (await find_devices(None, required=True, gpus=readings(1))).count == 1


async def test_a_driver_that_hangs_ends_the_start():
    """Models would be on the CPU for as long as the server lives."""
    with pytest.raises(ConfigError, match="did not answer within 60 s; number_of_gpu=0 starts without GPUs"):
        await find_devices(None, gpus=readings(answers=False))
    assert (await find_devices(0, gpus=readings(answers=False))).count == 0


async def test_gpus_may_come_later():
    ring, broken = DeviceRing(0), readings(3, is_broken=True)
    await look_again(ring, 2, gpus=readings(0))
    await look_again(ring, 2, gpus=readings(3, is_broken=True, answers=False))
    assert (ring.count, ring.assign()) == (0, None)
    await look_again(ring, 2, gpus=broken)
    await look_again(ring, 2, gpus=broken)

    assert (ring.count, broken.renewed) == (2, 1)
    assert {ring.assign(), ring.assign()} == {0, 1}
