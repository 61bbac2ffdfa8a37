"""Assigns accelerators to workers (reference 18.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from modelserver.engine.telemetry.gpus import START_PATIENCE, Gpus, gpus
from modelserver.errors import ConfigError

_log = logging.getLogger("modelserver.workers")


class DeviceList:
    """Round robin over the devices in a model's configuration, starting with the first."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = list(devices)
        self._next = 0

    def peek(self, after: int = 0) -> int | None:
        """Returns what :meth:`assign` would return, after so many other calls."""
        return self._devices[(self._next + after) % len(self._devices)] if self._devices else None

    def assign(self) -> int | None:
        """The index for the next worker; None without devices."""
        device = self.peek()
        self._next += 1
        return device


class DeviceRing(DeviceList):
    """Round robin over ``count`` devices, across all models, starting with the second as TorchServe does."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self._next = 1

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self._devices)

    def extend(self, count: int) -> None:
        """Adds devices up to this number."""
        self._devices += range(self.count, count)


async def find_devices(number_of_gpu: int | None, *, required: bool = False, gpus: Gpus = gpus) -> DeviceRing:
    """The GPUs for workers, at most ``number_of_gpu``. The log says why there are none where some should be.

    Raises ConfigError if there are none and some are ``required``, or if their driver does not answer.
    """
    if number_of_gpu != 0 and not await gpus.renew(START_PATIENCE):
        raise ConfigError(
            f"NVIDIA's driver did not answer within {START_PATIENCE:g} s; number_of_gpu=0 starts without GPUs"
        )
    ring = DeviceRing(gpus.count(number_of_gpu))
    if ring.count:
        return ring
    problem = "number_of_gpu=0" if number_of_gpu == 0 else gpus.driver.problem
    if required:
        raise ConfigError(f"require_gpu=true: no GPU is available: {problem}")
    if number_of_gpu or gpus.driver.is_broken:
        setting = f"number_of_gpu={number_of_gpu}: " if number_of_gpu else ""
        _log.warning("%sno GPU is available, models run on the CPU: %s", setting, problem)
    return ring


async def look_again(ring: DeviceRing, number_of_gpu: int | None, *, gpus: Gpus = gpus) -> None:
    """Adds the GPUs of a driver that could not be used before; does nothing on machines without one."""
    if not ring.count and gpus.driver.is_broken and await gpus.renew():
        ring.extend(gpus.count(number_of_gpu))


class Places:
    """The devices of one pool's workers. Freed ones are assigned first, so that they stay evenly used."""

    def __init__(self, devices: DeviceList) -> None:
        self._devices = devices
        self._left: list[int | None] = []

    def peek(self, after: int = 0) -> int | None:
        """Returns what :meth:`assign` would return, after so many other calls."""
        return self._left[~after] if after < len(self._left) else self._devices.peek(after - len(self._left))

    def assign(self) -> int | None:
        """The device for the next worker; None without devices."""
        return self._left.pop() if self._left else self._devices.assign()

    def leave(self, device: int | None) -> None:
        """Frees the device of a worker."""
        self._left.append(device)


def groups_of(devices: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """The devices in consecutive groups of ``size``, without the remainder."""
    return [tuple(devices[start : start + size]) for start in range(0, len(devices) - size + 1, size)]
