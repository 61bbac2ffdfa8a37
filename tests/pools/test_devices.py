from __future__ import annotations

from modelserver.pools.devices import DeviceList, DeviceRing, groups_of


def test_ring() -> None:
    """GPUs are handed out in turn across all models, the second one first (reference 18.3)."""
    ring = DeviceRing(3)

    assert [ring.assign() for _ in range(5)] == [1, 2, 0, 1, 2]


def test_one_gpu() -> None:
    """The only GPU is everybody's."""
    ring = DeviceRing(1)

    assert [ring.assign() for _ in range(3)] == [0, 0, 0]


def test_list() -> None:
    """The devices a configuration names are handed out in turn from the first."""
    named = DeviceList([2, 0])

    assert [named.assign() for _ in range(3)] == [2, 0, 2]


def test_no_devices() -> None:
    """Without devices there is none to assign."""
    assert DeviceRing(0).assign() is None
    assert DeviceList(()).assign() is None


def test_groups() -> None:
    """Workers of several devices take them in order; a rest that fills no group is left (reference 18.3)."""
    assert groups_of([0, 2, 5, 7, 8], 2) == [(0, 2), (5, 7)]
    assert groups_of(range(4), 4) == [(0, 1, 2, 3)]
    assert groups_of([0], 2) == []
