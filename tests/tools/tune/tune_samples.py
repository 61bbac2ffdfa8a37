"""Figures, and a bench on which time is a number, for the tests of the tuner."""

import math
from dataclasses import dataclass, field

from modelserver.tools.tune.errors import SettingRefused
from modelserver.tools.tune.figure import Figure, void
from modelserver.tools.tune.goal import ModelSetting


def figure(
    rate: float = 100.0, p50: float = 10.0, p90: float = 15.0, p99: float = 20.0, clients: int = 4
) -> Figure:
    return Figure(50, rate, p50, p90, p99, clients=clients)


@dataclass
class FakeBench:
    """A handler that takes ``a + b*n`` ms on a machine with so many cores, computed instead of measured.

    Workers beyond the cores bring nothing. ``refused`` and ``broken`` are settings that cannot be started,
    and batch sizes that answer with errors. ``spoilt``: latencies of long runs are multiplied by this.
    """

    a: float = 20.0
    b: float = 2.0
    cores: int = 1
    refused: frozenset[int] = frozenset()
    broken: int = 10**9
    spoilt: dict[int, float] = field(default_factory=dict)
    clock: float = 0.0
    served: list[ModelSetting] = field(default_factory=list)

    def now(self) -> float:
        return self.clock

    def serve(self, setting: ModelSetting) -> int:
        self.clock += 1.0
        if setting.workers in self.refused:
            raise SettingRefused("no memory")
        self.served.append(setting)
        return 1000

    def closed(self, clients: int, seconds: float, settle: float, longest: float) -> Figure:
        self.clock += seconds + settle
        setting = self.served[-1]
        workers = min(setting.workers, self.cores)
        batch = min(setting.batch_size, math.ceil(clients / workers))
        if batch >= self.broken:
            return void("status 507", clients)
        cost = self.a + self.b * batch
        latency = cost * math.ceil(clients / (batch * workers))
        latency *= self.spoilt.get(setting.batch_size, 1.0) if seconds > 10 else 1.0
        return Figure(
            100, clients / latency * 1e3, latency, latency, latency, clients=clients, costs={batch: cost}
        )

    def arrivals(self, rate: float, seconds: float, settle: float) -> Figure:
        self.clock += seconds + settle
        return Figure(100, rate, 1.0, 1.0, 1.0, offered=rate)


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def stage(self, name: str) -> None:
        self.lines.append(name)

    def trying(self, what: str, share: float) -> None:
        self.shares.append(share)

    def line(self, text: str) -> None:
        self.lines.append(text)
