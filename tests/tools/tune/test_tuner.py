from dataclasses import replace

import pytest
from tests.tools.tune.tune_samples import FakeBench, Notes, figure

from modelserver.tools.tune.errors import TuningError
from modelserver.tools.tune.figure import void
from modelserver.tools.tune.goal import ModelSetting, Point, parse_goal
from modelserver.tools.tune.sweep import Costs, SearchBounds
from modelserver.tools.tune.tuner import Tuner, TuningResult


def tuned(goal, bench=None, bounds=None, budget=300.0):
    return Tuner(bench or FakeBench(), parse_goal(goal), bounds or SearchBounds(), budget, Notes()).run()


def test_under_a_limit_the_largest_batch_that_keeps_to_it_is_chosen():
    """A handler of 20 + 2n ms keeps to 70 ms up to a batch of 25."""
    result = tuned("p99<=70ms")

    assert result.met
    assert 16 < result.choice.setting.batch_size <= 25
    assert result.choice.figure.p99_ms <= 70.0
    assert (result.costs.line.a_ms, result.costs.line.b_ms) == pytest.approx((20.0, 2.0))


def test_without_a_limit_batches_and_workers_grow_as_long_as_that_pays():
    bounds = SearchBounds(max_batch=8, max_workers=16, cores=4)
    assert tuned("max-throughput", FakeBench(cores=4), bounds, 600.0).choice.setting.workers == 4
    assert tuned("max-throughput").choice.setting.batch_size == 64
    assert tuned("max-throughput", FakeBench(a=0.0, b=10.0)).choice.setting.batch_size == 1


def test_the_least_latency_is_that_of_a_lone_client_without_batches():
    """No batch size above 1 is even tried."""
    bench = FakeBench()
    result = tuned("min-latency", bench, SearchBounds(clients=1))

    assert result.choice.setting.batch_size == 1
    assert result.choice.figure.p50_ms == pytest.approx(22.0)
    assert {setting.batch_size for setting in bench.served} == {1, 64}
    missed = tuned("p99<=10ms")
    assert (missed.met, missed.choice.setting.batch_size) == (False, 1)
    assert missed.choice.figure.p99_ms == pytest.approx(22.0)


def test_a_setting_that_cannot_be_started_is_left_out():
    """Where a batch of 16 runs out of memory, nothing of that size or above is chosen."""
    with pytest.raises(TuningError, match="1 x status 507"):
        tuned("max-throughput", FakeBench(broken=1))
    result = tuned("max-throughput", FakeBench(broken=16))
    assert result.choice.setting.batch_size == 8
    assert result.costs.pruned == ["16 and above: 1 x status 507"]
    result = tuned("max-throughput", FakeBench(cores=4, refused=frozenset({2})), SearchBounds(max_workers=4))

    assert result.met
    assert result.choice.setting.workers == 1
    assert "no memory" in " ".join(point.figure.reason() for point in result.points)


def test_a_choice_that_misses_the_goal_in_its_proof_gives_way():
    first = tuned("p99<=70ms").choice.setting.batch_size
    result = tuned("p99<=70ms", FakeBench(spoilt={first: 2.0}))

    assert result.met
    assert result.choice.setting.batch_size < first
    assert "was given up" in result.remarks[0]


def test_half_a_size_that_misses_the_limit_too_is_halved_again():
    """As on a machine that was busy during the proof of 15 and the measurement of 7."""

    class Busy(FakeBench):
        def closed(self, clients, seconds, settle, longest):
            figure = super().closed(clients, seconds, settle, longest)
            busy = self.clock > 9 and self.served[-1].batch_size in (7, 15)
            return replace(figure, p90_ms=figure.p90_ms + 80.0) if busy else figure

    result = tuned("p90<=100ms", Busy(15.0, 5.0), SearchBounds(max_batch=32), budget=8.0)

    assert result.remarks[0].startswith("batch 15, adaptive, 1 worker was given up")
    assert result.choice.setting.batch_size == 3


def test_where_the_promising_sizes_all_miss_the_limit_smaller_ones_are_tried():
    class Slow(FakeBench):
        def closed(self, clients, seconds, settle, longest):
            figure = super().closed(clients, seconds, settle, longest)
            more = 45.0 if self.served[-1].batch_size in range(5, 64) else 0.0
            return replace(figure, p99_ms=figure.p99_ms + more)

    result = tuned("p99<=70ms", Slow())

    assert result.met
    assert result.choice.setting.batch_size in (2, 3, 4)


def test_the_result_has_a_curve_and_a_baseline():
    """From a lone client on; the baseline is batch size 1 with one worker."""
    notes = Notes()
    result = Tuner(FakeBench(), parse_goal("p99<=70ms"), SearchBounds(), 300.0, notes).run()
    stages = ["what batches cost", "settings", "proof"]
    assert [line for line in notes.lines if line in stages] == stages
    assert notes.shares == sorted(notes.shares)
    clients = [figure.clients or 0 for figure in result.curve]

    assert clients[0] == 1
    assert clients == sorted(clients)
    assert result.choice.figure in result.curve
    assert result.baseline.setting.batch_size == 1
    assert result.sustained is not None


@pytest.mark.parametrize("budget", [10.0, 60.0, 300.0])
def test_the_budget_holds_in_the_main(budget):
    bench = FakeBench(cores=8)
    result = tuned("p99<=70ms", bench, SearchBounds(max_workers=8, cores=8), budget)

    assert result.seconds == bench.clock
    assert result.seconds < 2 * budget


def test_unsteady_machine_is_reported():
    def unsteady(*measured):
        result = TuningResult(parse_goal("max-throughput"), SearchBounds(), Costs())
        result.points = [Point(each, figure(rate=rate, clients=clients)) for each, clients, rate in measured]
        result.proofs = [Point(ModelSetting(8), void("status 503"))]
        return result.unsteady

    eight, two = ModelSetting(8), ModelSetting(1, workers=2)
    assert unsteady((eight, 8, 60.0), (eight, 16, 120.0), (eight, 16, 90.0)) == ""
    assert unsteady((ModelSetting(1), 1, 50.0), (two, 2, 100.0), (eight, 8, 350.0)) == ""
    assert unsteady((ModelSetting(8, "window", 100), 1, 5.0), (eight, 8, 350.0)) == ""
    assert "120 requests/s of 8 clients, and" in unsteady((eight, 8, 120.0), (eight, 16, 50.0))
    assert "only 2 of 16 clients" in unsteady((eight, 16, 2.0), (eight, 16, 100.0))
    assert "184 requests/s of 2 clients, and" in unsteady((ModelSetting(1), 1, 1.3), (two, 2, 184.0))
