"""Figures made of samples."""

from __future__ import annotations

from benchmarks.measure import Sample, busy_seconds, figures, interleaved, of, ratio


def taken(subject: str, repetition: int, rate: float, **more: dict[str, int]) -> Sample:
    return Sample(subject, 8, repetition, rate, p50_ms=1.0 / rate, p99_ms=2.0, cpu_us=3.0, **more)  # type: ignore[arg-type]


def test_a_figure_is_the_median_of_its_repetitions() -> None:
    """One figure per subject, in the order of first samples; every rate is kept."""
    samples = [taken("a", 0, 10), taken("b", 0, 1), taken("a", 1, 30), taken("a", 2, 20)]
    first, second = figures(samples)

    assert (first.subject, first.rate, first.rates, first.void) == ("a", 20, (10, 30, 20), False)
    assert (second.subject, second.rate) == ("b", 1)


def test_one_failure_voids_a_figure() -> None:
    """No rate and no latency is told of a subject that failed in any repetition."""
    (figure,) = figures([taken("a", 0, 10), taken("a", 1, 10, failures={"read": 2})])

    assert figure.void
    assert (figure.rate, figure.p50_ms, figure.p99_ms, figure.cpu_us) == (None, None, None, None)
    assert figure.failures == {"read": 2}


def test_ratios_are_taken_within_repetitions() -> None:
    """The median of the ratios, so that a slow spell of the machine cancels out."""
    samples = [taken("a", 0, 5), taken("b", 0, 10), taken("a", 1, 50), taken("b", 1, 100)]

    assert ratio(samples, of("a", 8), of("b", 8)) == 0.5
    assert ratio(samples, of("a", 8), of("b", 32)) is None


def test_a_ratio_with_a_failure_is_void() -> None:
    """Neither side may have failed."""
    samples = [taken("a", 0, 5), taken("b", 0, 10, failures={"status 503": 1})]

    assert ratio(samples, of("a", 8), of("b", 8)) is None
    assert ratio(samples, of("b", 8), of("a", 8)) is None


def test_measurements_are_interleaved() -> None:
    """All subjects are measured once before any is measured again, and each is told."""
    told: list[Sample] = []
    takers = [lambda r: taken("a", r, 1), lambda r: taken("b", r, 1)]
    samples = interleaved(2, takers, told.append)

    assert [(each.subject, each.repetition) for each in samples] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert told == samples


def test_busy_time_grows() -> None:
    """Computing is seen in the machine's busy time."""
    before = busy_seconds()
    while busy_seconds() - before < 0.02:
        sum(range(100_000))

    assert busy_seconds() > before
