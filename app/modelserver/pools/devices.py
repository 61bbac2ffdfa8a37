"""Assigns accelerators to workers (reference 18.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeviceList:
    """Round robin over the devices in a model's configuration, starting with the first."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = list(devices)
        self._next = 0

    def peek(self) -> int | None:
        """What :meth:`assign` would return."""
        return self._devices[self._next % len(self._devices)] if self._devices else None

    def assign(self) -> int | None:
        """The index for the next worker; None without devices."""
        device = self.peek()
        self._next += 1
        return device


class DeviceRing(DeviceList):
    """Round robin over ``count`` devices, across all models, starting with the second as TorchServe does."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.count = count
        self._next = 1


class Places:
    """The devices of one pool's workers. Freed ones are assigned first, so that they stay evenly used."""

    def __init__(self, devices: DeviceList) -> None:
        self._devices = devices
        self._left: list[int | None] = []

    def peek(self) -> int | None:
        """What :meth:`assign` would return."""
        return self._left[-1] if self._left else self._devices.peek()

    def assign(self) -> int | None:
        """The device for the next worker; None without devices."""
        return self._left.pop() if self._left else self._devices.assign()

    def leave(self, device: int | None) -> None:
        """Frees the device of a worker."""
        self._left.append(device)


def groups_of(devices: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """The devices in consecutive groups of ``size``, without the remainder."""
    return [tuple(devices[start : start + size]) for start in range(0, len(devices) - size + 1, size)]
