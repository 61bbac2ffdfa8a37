"""The order of a tuning: what batches cost, then the settings around the best, then the proof.

1. One worker with the largest batch size, and more and more clients: the handler's time by batch size, and
   its line a + b*n. Sizes that cannot meet the goal are left out.
2. The promising sizes, each registered and measured; around the best, more workers, other policies and
   numbers of threads, as far as the time allows.
3. The choice again, for longer; if it misses the goal, the next best. Finally the curve of the choice, and
   the rate that independent clients may have.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from modelserver.tools.commands import counted
from modelserver.tools.tune import sweep
from modelserver.tools.tune.bench import LocalBench
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.figure import Figure, void
from modelserver.tools.tune.goal import CLOSE, Goal, ModelSetting, Point, best, nearest, ranked
from modelserver.tools.tune.progress import Progressing
from modelserver.tools.tune.sweep import Costs, SearchBounds

# Shares of the budget after which a stage starts nothing new, except for a required minimum.
_COSTS_UNTIL, _SWEEP_UNTIL = 0.3, 0.65
_LEAST_COSTS, _LEAST_SETTINGS = 4, 3
_SHORTEST, _LONGEST = 0.25, 8.0  # seconds of a measurement
_MEASUREMENTS = 50  # per budget
_PROOF = 3.0  # times as long as another measurement
_CALMER = 0.9
UNSTEADY = 2.0  # times what another figure allows: more than the noise that there always is
_ATTEMPTS = 4  # to prove a choice, regardless of the time
_STRETCH = 4.0  # a load with too few answers continues for up to this factor
# Rates to try with independent clients, as shares of the throughput.
_SHARES = (0.9, 0.75, 0.6, 0.45)


@dataclass(slots=True)
class TuningResult:
    """What was found. ``chosen`` is None if nothing could be served; ``met``: it meets the goal.

    ``points`` are those of the sweep, ``proofs`` those of the longer runs. ``baseline`` is the best of batch
    size 1 with one worker. ``sustained`` is the highest rate of independent clients that meets the goal.
    """

    goal: Goal
    bounds: SearchBounds
    costs: Costs
    points: list[Point] = field(default_factory=list)
    proofs: list[Point] = field(default_factory=list)
    chosen: Point | None = None
    met: bool = False
    baseline: Point | None = None
    curve: list[Figure] = field(default_factory=list)
    sustained: Figure | None = None
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def unsteady(self) -> str:
        """A warning if figures contradict each other, as on a machine that is not steady; else empty."""
        measured = [point for point in (*self.points, *self.proofs) if not point.figure.void]
        for more, less in itertools.permutations(measured, 2):
            clients, fewer = more.figure.clients or 1, less.figure.clients or 1
            is_later = more.setting == less.setting and clients <= fewer
            # No client gets an answer sooner than a lone one that does not wait for a batch.
            waits = "window" in {more.setting.policy, less.setting.policy}
            is_lone = fewer == 1 and more.setting.threads == less.setting.threads and not waits
            most = less.figure.rate * UNSTEADY * (clients if is_lone else 1)
            if (is_later or is_lone) and more.figure.rate > most:
                high, low = more.figure.rate, less.figure.rate
                return (
                    f"{more.setting} answered {high:.4g} requests/s of {clients_text(clients)}, and"
                    f" {less.setting} only {low:.4g} of {clients_text(fewer)}: the machine was not steady,"
                    " and figures may be off by as much. Repeat it where nothing else runs"
                )
        return ""

    @property
    def choice(self) -> Point:
        """The chosen point. Raises TuningError if there is none."""
        if self.chosen is None:
            raise TuningError("No setting could be measured.")
        return self.chosen


class Tuner:
    """One tuning.

    Args:
        bench: measures.
        goal: what to achieve.
        bounds: what may be tried.
        budget: approximate seconds, counted from when the model is first served.
        listener: receives progress.
    """

    def __init__(
        self, bench: LocalBench, goal: Goal, bounds: SearchBounds, budget: float, listener: Progressing
    ) -> None:
        self._bench = bench
        self._goal = goal
        self._bounds = bounds
        self._budget = budget
        self._listener = listener
        self._began = self._budget_from = bench.now()
        self._each = min(_LONGEST, max(_SHORTEST, budget / _MEASUREMENTS))
        self._tried: set[ModelSetting] = set()
        self._capacity = 1
        self._serving: ModelSetting | None = None
        self._result = TuningResult(goal, bounds, sweep.Costs())

    def run(self) -> TuningResult:
        """Raises TuningError if the model cannot be served or answers with errors."""
        result = self._result
        self._listener.stage("what batches cost")
        self._find_costs()
        self._listener.stage("settings")
        self._sweep_sizes()
        self._sweep_around()
        self._listener.stage("proof")
        self._prove()
        self._describe_choice()
        if result.unsteady:
            result.remarks.append(result.unsteady)
        result.seconds = self._bench.now() - self._began
        return result

    # -- the first stage

    def _find_costs(self) -> None:
        costs = self._result.costs
        bounds = self._bounds
        largest = bounds.max_batch
        self._serve(ModelSetting(largest, "window", sweep.COST_DELAY, threads=bounds.threads))
        self._budget_from = self._bench.now()
        for size in sweep.sizes(largest):
            why = sweep.pruned(self._goal, bounds, size, costs)
            enough = len(costs.figures) >= _LEAST_COSTS
            if why is None and enough and self._share() > _COSTS_UNTIL:
                why = "the time for this stage is over"
            if why is not None:
                self._leave_out(size, why)
                return
            figure = self._closed(f"{clients_text(size)}, one batch at a time", size)
            if figure.void:
                if size == 1:
                    raise TuningError(f"The model does not answer as it should: {figure.reason()}.")
                self._leave_out(size, figure.reason())
                return
            costs.add(size, figure)
            cost = costs.handler_ms.get(size)
            text = "" if cost is None else f", a batch of {size} takes {cost:.4g} ms"
            self._listener.line(f"{clients_text(size)}: {self._goal.text_of(figure)}{text}")

    def _leave_out(self, size: int, why: str) -> None:
        self._result.costs.pruned.append(f"{size} and above: {why}")
        self._listener.line(f"batches of {size} and above are left out: {why}")

    # -- the second stage

    def _sweep_sizes(self) -> None:
        line = self._result.costs.line
        if line is not None and line.worth_telling:
            self._listener.line(f"a batch of n takes about {line}")
        for size in sweep.promising(self._goal, self._bounds, self._result.costs):
            for setting in sweep.of_size(self._goal, self._bounds, size, self._result.costs):
                self._try(setting)
        self._step_down()
        plain = [p for p in self._result.points if p.setting.batch_size == 1 and not p.figure.void]
        self._result.baseline = max(plain, key=lambda p: p.figure.rate, default=None)

    def _step_down(self) -> None:
        """Halves the size as long as nothing above a batch of 1 meets the limit: half may easily do so."""
        size = min((s.batch_size for s in self._tried if s.batch_size > 1), default=1) // 2
        while size > 1 and self._goal.kind == "limit" and self._best_setting().batch_size == 1:
            for setting in sweep.of_size(self._goal, self._bounds, size, self._result.costs):
                self._try(setting, needed=True)
            size //= 2

    def _sweep_around(self) -> None:
        top = self._best_setting()
        workers = 2
        while workers <= self._bounds.max_workers and top.workers == workers // 2:
            before = self._worth()
            for setting in sweep.more_workers(self._goal, top, workers):
                self._try(setting)
            if self._worth() < sweep.GAIN * before:
                break
            top, workers = self._best_setting(), workers * 2
        for setting in sweep.other_policies(self._goal, self._best_setting(), self._result.costs):
            self._try(setting)
        for setting in sweep.other_threads(self._bounds, self._best_setting()):
            self._try(setting)

    def _best_setting(self) -> ModelSetting:
        points = self._result.points
        top = best(self._goal, points) or nearest(self._goal, points)
        return top.setting if top is not None else ModelSetting(1, threads=self._bounds.threads)

    def _worth(self) -> float:
        top = best(self._goal, self._result.points)
        return 0.0 if top is None else self._goal.worth(top.figure)

    def _try(self, setting: ModelSetting, *, needed: bool = False) -> None:
        """Measures a setting, unless it has been, or the time is over and there is a choice."""
        late = self._share() > _SWEEP_UNTIL and len(self._tried) >= _LEAST_SETTINGS
        if setting in self._tried or (late and not needed):
            return
        self._tried.add(setting)
        try:
            self._serve(setting)
        except SettingRefused as refused:
            self._add(Point(setting, void(str(refused))))
            return
        for clients in sweep.loads(self._goal, self._bounds, setting, self._capacity):
            point = Point(setting, self._closed(f"{setting}, {clients_text(clients)}", clients))
            self._add(point)
            if not self._goal.met(point.figure):
                break

    def _add(self, point: Point) -> None:
        self._result.points.append(point)
        self._listener.line(f"{point.setting}: {self._describe(point.figure)}")

    # -- the third stage

    def _prove(self) -> None:
        """Longer runs, from the best candidate on, until one meets the goal and is as good as expected."""
        goal, result = self._goal, self._result
        left = ranked(goal, result.points)
        if not left:
            result.chosen = nearest(goal, result.points)
            result.remarks.append(f"no setting met {goal.text}")
            return
        proven: list[Point] = []
        attempts = 0
        while left and (attempts < _ATTEMPTS or self._share() < 1.0):
            candidate = left.pop(0)
            attempts += 1
            proof = self._proof(candidate)
            result.proofs.append(proof)
            if goal.met(proof.figure):
                proven.append(proof)
            else:
                measured = self._describe(proof.figure)
                text = f"{candidate.setting} was given up: {measured} when measured for longer"
                result.remarks.append(text)
                self._listener.line(text)
                left = calmer(goal, [*left, *self._smaller(candidate)], candidate)
            next_worth = max((goal.worth(p.figure) for p in left), default=0.0)
            top = max((goal.worth(p.figure) for p in proven), default=0.0)
            if proven and (top >= (1 - 2 * CLOSE) * next_worth or attempts >= _ATTEMPTS):
                break
        result.met = bool(proven)
        result.chosen = best(goal, proven) or nearest(goal, result.proofs) or nearest(goal, result.points)

    def _smaller(self, failed: Point) -> list[Point]:
        """Measures half the size of a setting that failed, and half of that, until one meets the limit."""
        before = len(self._result.points)
        size = largest = failed.setting.batch_size
        while self._goal.kind == "limit" and size > 1 and not self._meets(size // 2, largest):
            size //= 2
            setting = replace(failed.setting, batch_size=size)
            if setting.policy == "window":
                setting = sweep.window(setting, self._result.costs)
            self._try(setting, needed=True)
        return self._result.points[before:]

    def _meets(self, least: int, below: int) -> bool:
        """Whether a batch size of this range has met the goal."""
        points = self._result.points
        return any(least <= p.setting.batch_size < below and self._goal.met(p.figure) for p in points)

    def _proof(self, candidate: Point) -> Point:
        """The candidate once more, for longer. A limit must also be met for a lone client."""
        setting, clients = candidate.setting, candidate.figure.clients or 1
        try:
            self._serve(setting)
        except SettingRefused as refused:
            return Point(setting, void(str(refused), clients))
        what = f"{setting}, {clients_text(clients)}"
        figure = self._closed(what, clients, times=_PROOF)
        self._listener.line(f"proof of {setting}: {self._describe(figure)}")
        serves_any = self._goal.kind == "limit" and self._bounds.clients is None
        if serves_any and clients > 1 and self._goal.met(figure):
            lone = self._closed(f"{setting}, a lone client", 1)
            if not self._goal.met(lone):
                return Point(setting, lone)
        return Point(setting, figure)

    def _describe_choice(self) -> None:
        """The curve of latency by throughput, and that of independent clients."""
        result = self._result
        chosen = result.chosen
        if chosen is None or chosen.figure.void:
            return
        try:
            self._serve(chosen.setting)
        except SettingRefused as refused:
            result.remarks.append(f"the curve could not be measured: {refused}")
            return
        clients = chosen.figure.clients or 1
        result.curve.append(chosen.figure)
        for step in sweep.ladder(clients):
            figure = self._closed(f"curve, {clients_text(step)}", min(step, self._capacity), times=0.5)
            if not figure.void:
                result.curve.append(figure)
        result.curve.sort(key=lambda figure: figure.clients or 0)
        for share in _SHARES if result.goal.kind == "limit" else _SHARES[1:2]:
            rate = share * chosen.figure.rate
            self._listener.trying(f"independent clients, {rate:.4g}/s", self._share())
            figure = self._bench.arrivals(rate, self._each, self._each / 4)
            self._listener.line(f"independent clients: {self._describe(figure)}")
            if self._goal.met(figure):
                result.sustained = figure
                break

    # -- measuring

    def _serve(self, setting: ModelSetting) -> None:
        if setting == self._serving:
            return
        self._serving = None
        self._listener.trying(f"starting {setting}", self._share())
        self._capacity = self._bench.serve(setting)
        self._serving = setting

    def _closed(self, what: str, clients: int, times: float = 1.0) -> Figure:
        self._listener.trying(what, self._share())
        seconds = times * self._each
        size = self._serving.batch_size if self._serving else 1
        # Batch sizes settle in the first one or two rounds.
        waves = max(1.0, clients / size)
        round_trip = waves * self._result.costs.expected_ms(min(size, clients)) / 1e3
        settle = max(self._each / 4, 2 * round_trip)
        longest = max(seconds, _STRETCH * self._each if self._share() < 1.0 else 2 * round_trip)
        return self._bench.closed(clients, seconds, settle, longest)

    def _share(self) -> float:
        return (self._bench.now() - self._budget_from) / self._budget

    def _describe(self, figure: Figure) -> str:
        if figure.void:
            return figure.reason()
        load = clients_text(figure.clients) if figure.clients else f"{figure.offered or 0:.4g}/s offered"
        missed = "" if self._goal.met(figure) else f", misses {self._goal.text}"
        return f"{load}: {self._goal.text_of(figure)}{missed}"


def calmer(goal: Goal, left: list[Point], failed: Point) -> list[Point]:
    """Returns points with clearly less latency than one whose proof failed: closer ones would fail too."""
    limit = _CALMER * goal.latency(failed.figure)
    room = [point for point in left if goal.latency(point.figure) <= limit]
    return ranked(goal, room or left)


def clients_text(clients: int) -> str:
    """How many clients, in words."""
    return counted(clients, "client")
