"""Which version of a model gets a request that names none, and what happens beside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from operator import itemgetter
from random import random
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.pool import Pool
from modelserver.errors import BadRequest
from modelserver.ext.rollout.judging import Judge
from modelserver.ext.rollout.plan import Plan, check, pair_of, renamed, tidy, without
from modelserver.ext.rollout.promoting import Progress, Promoter, Report, State
from modelserver.ext.rollout.shadow import Shadow, Spare
from modelserver.models.version import Headed, ModelVersion

# From weights to a version: intervals of [0, 1), computed when weights or readiness change.

_BITS = 0xFFFFFFFF
_SCALE = 2.0**-32


class Interval(NamedTuple):
    """The points below ``end``, from the end of the interval before."""

    end: float
    version: str


def intervals(weights: Mapping[str, float], ready: Container[str]) -> list[Interval]:
    """The interval of each version, in the order of the weights; without one if no version is ready.

    A version that is not ready keeps its place: only its own points go to the others, in proportion to their
    weights, so that points of the others stay where they are.
    """
    able = {version: weight for version, weight in weights.items() if weight and version in ready}
    total = sum(able.values())
    result: list[Interval] = []
    begin = 0.0
    for version, weight in weights.items():
        if version in able:
            result.append(Interval((begin + weight) / 100, version))
        else:
            taken = begin
            for other, share in able.items():
                taken += weight * share / total
                result.append(Interval(taken / 100, other))
        begin += weight
    return _joined(result)


def _joined(pieces: Sequence[Interval]) -> list[Interval]:
    """Without empty intervals; neighbours of one version are one, and the last has no end."""
    joined: list[Interval] = []
    for each in pieces:
        if joined and each.version == joined[-1].version:
            joined.pop()
        if each.end > (joined[-1].end if joined else 0.0):
            joined.append(each)
    if joined:
        joined[-1] = Interval(1.0, joined[-1].version)
    return joined


def shares(pieces: Sequence[Interval]) -> dict[str, float]:
    """The percent of the points that each version has."""
    percent: dict[str, float] = {}
    begin = 0.0
    for each in pieces:
        percent[each.version] = percent.get(each.version, 0.0) + (each.end - begin) * 100
        begin = each.end
    return percent


def point_of(value: bytes) -> float:
    """A point of [0, 1) that depends only on the value, in any process and on any machine."""
    # Multiplied by the golden ratio, as checksums of similar texts are similar.
    return (crc32(value) * 0x9E3779B1 & _BITS) * _SCALE


_log = logging.getLogger("modelserver.rollout")

# Seconds between looks at which versions are ready, and at a promotion.
EVERY = 0.25


@dataclass(slots=True)
class RequestCount:
    """The requests that a version got."""

    value: float = 0.0


class ModelTraffic:
    """The traffic of one model.

    Args:
        name: of the model, for the log.
        keep: bytes of bodies that are kept where a shadow's answer differs, 0 for none.
        on_change: called when the plan has changed by itself.
    """

    def __init__(self, name: str, *, keep: int = 0, on_change: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.plan = Plan()
        self.shadows: dict[str, Shadow] = {}
        self.promotion: Report | None = None
        self.requests: dict[str, RequestCount] = {}
        self._on_change = on_change
        self._versions: Mapping[str, ModelVersion] = {}
        self._default = ""
        # The version of each interval, with its end and the counter of its requests.
        self._slots: list[tuple[float, ModelVersion, RequestCount]] = []
        self._verifies = False
        self._effective: dict[str, int | float] = {}
        self._header = b""
        # As most clients write it: looked up faster than each name in lower case.
        self._spellings: frozenset[bytes] = frozenset()
        # Shadows with their shares, the greatest first, and the number of requests until the next copy.
        self._sampled: list[tuple[float, Shadow]] = []
        self._until = 0
        # Whether :meth:`watch` has anything to do.
        self.watches = False
        self.promoter: Promoter | None = None
        self._judge = Judge()
        self._make_shadow = partial(
            Shadow, judge=self._judge, keep=keep, spare=Spare(), on_result=self._copied
        )
        self._timer: asyncio.TimerHandle | None = None

    # -- for each request

    def choose(self, request: Headed) -> ModelVersion:
        """The version for a request that names none; its headers are read only where they decide."""
        slots = self._slots
        if not slots:
            return self._versions[self._default]
        point = random() if not self._header else self._point(request.headers)  # noqa: S311 - no secret
        for end, version, requests in slots:  # noqa: B007 - used after it
            if point < end:
                break
        if self._verifies:
            for worker in version.pool.workers:
                if worker.is_ready:
                    break
            else:
                # One that is parked is ready without workers.
                if not is_ready(version.pool):
                    self._look()
                    return self.choose(request)
        requests.value += 1.0
        return version

    def _point(self, headers: Iterable[tuple[bytes, bytes]]) -> float:
        usual = self._spellings
        for name, value in headers:
            if name in usual:
                return point_of(value)
        for name, value in headers:
            if name.lower() == self._header:
                return point_of(value)
        return random()  # noqa: S311 - no secret

    def home(self, sequence_id: str, chosen: ModelVersion) -> ModelVersion:
        """The version that has the state of a sequence; if none has, the same one for the same id."""
        for version in self._versions.values():
            affinity = version.pool.affinity
            if affinity is not None and affinity.knows(sequence_id):
                return version
        point = point_of(sequence_id.encode())
        return next((version for end, version, _ in self._slots if point < end), chosen)

    def watch(self, request: Request, version: ModelVersion) -> None:
        """Before a request that names no version is queued: it may be copied, or counted, at its end.

        Only if :attr:`watches`.
        """
        self._until -= 1
        if not self._until:
            self._until = self._next_sample()
            shadows = self._sample(version)
        elif self.promoter is None:
            return
        else:
            shadows = []
        if shadows or self.promoter is not None:
            _Watched(request, version, shadows, self.promoter)

    def _next_sample(self) -> int:
        """After how many requests one is copied: drawing this is cheaper than to decide for each."""
        most = self._sampled[0][0]
        # Of the geometric distribution.
        return int(log(1 - random()) / log(1 - most)) + 1 if most < 1 else 1  # noqa: S311 - no secret

    def _sample(self, version: ModelVersion) -> list[Shadow]:
        """The shadows that get a copy of one request, the one with the greatest share among them."""
        most, first = self._sampled[0]
        result = [] if first.version is version or first.passes_over() else [first]
        for share, shadow in self._sampled[1:]:
            chosen = random() * most < share  # noqa: S311 - no secret
            if chosen and shadow.version is not version and not shadow.passes_over():
                result.append(shadow)
        return result

    def refused(self, version: ModelVersion, status: int) -> None:
        """A request for this version was answered with this status before it was queued."""
        if self.promoter is not None and status >= 500:
            self.promoter.refused(version.version)

    # -- for each change

    def adopt(self, plan: Plan, *, stopped: str = "") -> None:
        """Carries out another plan, which was checked; ``stopped``: why a promotion ends, if it does."""
        before, self.plan = self.plan, plan
        self._header = header = plan.sticky.lower().encode()
        self._spellings = frozenset({header, header.title(), plan.sticky.encode()})
        if stopped and before.promote is not None and plan.promote is None and self.promotion is not None:
            self.promotion.note(stopped, "stopped")
        if plan.promote is None:
            self.promoter = None
        elif plan.promote != before.promote or self.promoter is None:
            version, base = pair_of(plan, self._default)
            self.promoter = Promoter(plan.promote, version, base)
            self.promotion = Report(version, base)
        self._bind_shadows()
        self.watches = bool(self._sampled) or self.promoter is not None
        self._look()
        self._tick()

    def follow(
        self, versions: Mapping[str, ModelVersion], default: str, moved: tuple[str, str] | None = None
    ) -> None:
        """The versions of the model have changed; ``moved``: one was replaced by one of another name."""
        plan = self.plan
        if moved is not None:
            plan = renamed(plan, *moved)
            if self.promotion is not None:
                self.promotion.version, self.promotion.base = (
                    moved[1] if name == moved[0] else name
                    for name in (self.promotion.version, self.promotion.base)
                )
            # Figures of the previous archive do not count for the new one.
            self.promoter = None
        self._versions, self._default = versions, default
        gone = {*plan.weights, *plan.shadow} - versions.keys()
        for name in gone:
            plan = without(plan, name)
        stopped = ""
        try:
            check(plan, versions, default)
        except BadRequest as error:
            plan, stopped = msgspec.structs.replace(plan, promote=None), f"versions changed: {error.message}"
        self.adopt(plan, stopped=stopped)

    def send_all(self, reason: str) -> None:
        """Drops the weights, and with them a promotion: the default version gets everything."""
        plan = msgspec.structs.replace(self.plan, weights={}, promote=None)
        self.adopt(plan, stopped=reason)

    def _bind_shadows(self) -> None:
        """Makes shadows for new entries of the plan, keeps those that stay, and ends the others."""
        before, self.shadows = self.shadows, {}
        for name, how in self.plan.shadow.items():
            same = before.get(name)
            if same is not None and same.how == how:
                self.shadows[name] = before.pop(name)
                same.version = self._versions[name]
            else:
                self.shadows[name] = self._make_shadow(self._versions[name], how)
        for shadow in before.values():
            shadow.close()
        sampled = [(each.how.percent / 100, each) for each in self.shadows.values() if each.how.percent]
        self._sampled = sorted(sampled, key=itemgetter(0), reverse=True)
        self._until = self._next_sample() if sampled else 0

    def _copied(self, version: ModelVersion, failed: bool, seconds: float, agreed: bool | None) -> None:
        if self.promoter is not None and version.version == self.promoter.version:
            self.promoter.copied(failed, seconds, agreed)

    def _look(self) -> None:
        """Computes who gets which share from what is ready now."""
        weights = self.plan.weights
        ready = {name for name in weights if is_ready(self._versions[name].pool)}
        self._verifies = bool(ready)
        # Without a ready version they wait for one, as they would without weights.
        result: list[Interval] = intervals(weights, ready or weights.keys())
        self._slots = [
            (end, self._versions[name], self.requests.setdefault(name, RequestCount()))
            for end, name in result
        ]
        percent = shares(result)
        effective = {name: tidy(percent.get(name, 0) if name in ready else 0) for name in weights}
        if effective != self._effective:
            self._effective = effective
            text = ", ".join(f"{name} {weight:g} %" for name, weight in effective.items())
            _log.info("Model %s: traffic %s", self.name, text or "to the default version")

    def _tick(self) -> None:
        """Starts the timer of the next look if there are weights or a promotion, and stops it otherwise."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.plan.weights or self.promoter is not None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._tick()
        self._look()
        if self.promoter is not None:
            self._promote(self.promoter)

    def _promote(self, promoter: Promoter) -> None:
        """Changes the weight of the promoted version as the guard decides from its answers."""
        report = self.promotion
        assert report is not None  # noqa: S101 - there is one for each promoter
        weight = self.weight_of(promoter.version)
        verdict, after = promoter.verdict(weight)
        if verdict.action == "stay":
            return
        report.decisions[verdict.cause] += 1
        goes = "is promoted" if after is None else f"goes from {weight:g} % to {after:g} %"
        text = f"{promoter.version} {goes}: {verdict.reason}"
        promoter.begin()
        if promoter.goal.dry_run:
            report.note(f"dry run, nothing is changed: {text}")
            _log.info("Model %s: dry run: %s", self.name, text)
            return
        is_back, plan = verdict.action == "back", self.plan
        ends = after is None or is_back
        level = logging.WARNING if is_back else logging.INFO
        kind = "rolled_back" if is_back else "promoted" if ends else "promotion_step"
        _log.log(level, "Model %s: %s", self.name, text, extra={"event": kind})
        if after is not None:
            weights = {promoter.base: tidy(100 - after), promoter.version: tidy(after)}
            plan = msgspec.structs.replace(plan, weights=weights)
        if ends:
            plan = msgspec.structs.replace(plan, promote=None)
        state: State = "rolled back" if is_back else "promoted" if ends else "watching"
        report.note(text, state)
        self.adopt(plan)
        self._on_change()

    def close(self) -> None:
        """Ends the shadows, and looks no more."""
        if self._timer is not None:
            self._timer.cancel()
        for shadow in self.shadows.values():
            shadow.close()
        self._judge.close()

    # -- reports

    def weight_of(self, version: str) -> int | float:
        """The percent that a version is to get; without weights the default one gets everything."""
        if not self.plan.weights:
            return 100 if version == self._default else 0
        return self.plan.weights.get(version, 0)

    @property
    def effective(self) -> dict[str, int | float]:
        """The percent that each version gets now: nothing without a ready worker."""
        if not self.plan.weights:
            return {self._default: 100 if is_ready(self._versions[self._default].pool) else 0}
        self._look()
        return dict(self._effective)

    @property
    def ready(self) -> bool:
        """Whether any version that gets requests has a ready worker."""
        return any(self.effective.values())

    @property
    def state(self) -> dict[str, Any]:
        """The plan as JSON, for snapshots."""
        return self.plan.document()

    def describe(self, version: str) -> dict[str, Any]:
        """The version's weight, whether it is a shadow, and its promotion."""
        promotion, shadow = self.promotion, self.plan.shadow.get(version)
        concerned = promotion is not None and version in (promotion.version, promotion.base)
        return {
            "wanted": self.weight_of(version),
            "effective": self.effective.get(version, 0),
            "sticky": self.plan.sticky or None,
            "shadow": None if shadow is None else shadow.percent,
            "promotion": self.describe_promotion() if concerned else None,
        }

    def describe_promotion(self) -> dict[str, Any] | None:
        """The promotion under way, or how the last one ended; None without one."""
        return None if self.promotion is None else self.promotion.describe(self.progress)

    @property
    def progress(self) -> Progress | None:
        """How far a promotion under way is."""
        promoter = self.promoter
        return None if promoter is None else promoter.progress(self.weight_of(promoter.version))


class _Watched:
    """Receives the parts and the end of a request before its client: for promotions and shadows."""

    __slots__ = ("_on_done", "_on_part", "_promoter", "_shadows", "_streamed", "_version")

    def __init__(
        self, request: Request, version: ModelVersion, shadows: list[Shadow], promoter: Promoter | None
    ) -> None:
        self._version = version
        self._shadows = shadows
        self._promoter = promoter
        self._streamed = False
        self._on_done, request.on_done = request.on_done, self._done
        self._on_part = request.on_part
        if self._on_part is not None and shadows:
            request.on_part = self._part

    def _part(self, request: Request, answer: Any, content: bytes) -> None:
        self._streamed = True
        if self._on_part is not None:
            self._on_part(request, answer, content)

    def _done(self, request: Request) -> None:
        seconds = monotonic() - request.arrived
        if self._on_done is not None:
            self._on_done(request)
        try:
            if self._promoter is not None:
                self._promoter.answered(request, self._version.version, seconds)
            for shadow in self._shadows:
                shadow.take(request, self._version, streamed=self._streamed)
        except Exception:  # noqa: BLE001 - the pool delivers the answers of other requests next
            _log.exception("An answered request could not be copied or counted")


def is_ready(pool: Pool) -> bool:
    """Whether a worker is loaded, and requests are accepted."""
    return pool.ready and not pool.admission.closing
