from types import SimpleNamespace

import pytest
from tests.ext.triton.doubles import version

from modelserver.errors import ModelNotFound
from modelserver.ext.triton.statistics import list_statistics, statistics_of


def test_batches_are_counted():
    """Instances and batches are counted; a request's computation is that of its batch, in nanoseconds."""
    model = version()
    model.metrics.batches.finished(2, 2, 4, "size", 0.004, (0.001, 0.002, 0.001))
    model.metrics.batches.finished(2, 1, 4, "size", 0.003, (0.0, 0.0, 0.0))
    model.metrics.batches.finished(4, 1, 4, "size", 0.004, (0.0, 0.004, 0.0))
    statistics = statistics_of(model)

    assert (statistics["inference_count"], statistics["execution_count"]) == (8, 3)
    assert statistics["last_inference"] > 1_600_000_000_000
    stats = statistics["inference_stats"]
    assert stats["compute_input"] == {"count": 4, "ns": 2_000_000}
    assert stats["compute_infer"] == {"count": 4, "ns": 2 * 2_000_000 + 3_000_000 + 4_000_000}
    assert stats["compute_output"] == {"count": 4, "ns": 2_000_000}
    twos, fours = statistics["batch_stats"]
    assert (twos["batch_size"], twos["compute_infer"]) == (2, {"count": 2, "ns": 5_000_000})
    assert (fours["batch_size"], fours["compute_infer"]) == (4, {"count": 1, "ns": 4_000_000})

    statistics = statistics_of(version())

    assert statistics["last_inference"] == statistics["inference_count"] == statistics["execution_count"] == 0
    assert set(map(tuple, map(dict.values, statistics["inference_stats"].values()))) == {(0, 0)}
    assert statistics["batch_stats"] == []


def test_ends_of_requests_are_counted():
    model = version()
    metrics = model.metrics
    for _ in range(3):
        metrics.batches.waited(0.001)
        metrics.requests.answered(0.01, 0.001, False)
    metrics.requests.totals.fail(0.01, answered=True)
    metrics.requests.totals.fail(2.0, answered=False)
    metrics.requests.rejected("queue_full")
    metrics.requests.cancelled(0.5)
    statistics = statistics_of(model)
    stats, responses = statistics["inference_stats"], statistics["response_stats"]["0"]

    assert stats["success"] == {"count": 2, "ns": pytest.approx(20_000_000)}
    assert stats["fail"] == {"count": 3, "ns": pytest.approx(2_010_000_000)}
    assert stats["queue"] == {"count": 3, "ns": pytest.approx(3_000_000)}
    assert responses["cancel"] == {"count": 1, "ns": 500_000_000}
    assert responses["success"] == stats["success"]


async def listed(registry, *which):
    return [each async for each in list_statistics(registry, *which)]


async def test_versions_are_listed_by_name_and_version():
    made = version()

    def get(name, expected):
        if (name, expected) != ("m", "1"):
            raise ModelNotFound.named(name)
        return made

    registry = SimpleNamespace(
        get=get, versions=lambda name=None: [made, made] if name else [made] * 3, is_default=lambda _: True
    )

    assert [len(await listed(registry, *which)) for which in (("m", "1"), ("m",), ())] == [1, 2, 3]
    with pytest.raises(ModelNotFound):
        await listed(registry, "gone", "1")


@pytest.mark.parametrize(
    ("versions", "numbers"),
    [
        (["1.0"], ["1"]),
        (["1.0", "2.0"], ["2", "1"]),
        (["1.0", "1.1"], ["1", "1.0"]),
        (["1", "1.1"], ["1.1", "1"]),
        (["v1", "1.2.3", "٣.0"], ["٣.0", "v1", "1"]),
    ],
)
async def test_versions_are_numbers(versions, numbers):
    """Triton's tools expect whole numbers, so 1.0 is reported as 1; the last one here is the default."""
    made = []
    for name in versions:
        made.append(version())
        made[-1].version = name
    registry = SimpleNamespace(versions=lambda _=None: made, is_default=lambda model: model is made[-1])

    assert [each["version"] for each in await listed(registry, "m")] == numbers
