from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelserver.errors import BadRequest, OutOfMemory
from modelserver.models.replacement import check_memory, check_replaceable, taken_over, worker_count
from modelserver.options.resolve import BatchPolicy, ModelOptions, Registration

MIB = 1 << 20


def running(
    registration: Registration | None = None, workers: tuple[int, int] = (1, 1), **options: Any
) -> Any:
    """A version with these options, all of which somebody asked for, unless ``sources`` says otherwise."""
    options.setdefault("sources", dict.fromkeys(options, "register parameter"))
    return cast(
        "Any",
        SimpleNamespace(
            name="m",
            version="1.0",
            options=ModelOptions(**options),
            registration=registration or Registration(url="old.mar"),
            pool=SimpleNamespace(
                min_workers=workers[0],
                max_workers=workers[1],
                need=600 * MIB,
                workers=[object()] * workers[0],
            ),
        ),
    )


def test_trust_is_not_taken_over() -> None:
    """That an operator named the old archive says nothing about where a client's url may lead."""
    before = running(Registration(url="/opt/old", trusted=True))

    assert not taken_over(before, Registration(url="/opt/new")).trusted


def test_what_was_asked_for_stays() -> None:
    """Handler, batch settings and timeouts of the registration and of later changes; not the url."""
    before = running(
        Registration(url="old.mar", handler="h.py:serve", batch_size=2, split_instances="true"),
        batch_size=8,
        max_batch_delay=20,
        batch_policy=BatchPolicy.WINDOW,
        response_timeout=9,
    )
    after = taken_over(before, Registration(url="new.mar"))

    assert (after.url, after.model_name, after.handler) == ("new.mar", "m", "h.py:serve")
    assert (after.batch_size, after.max_batch_delay, after.batch_policy) == (8, 20, "window")
    assert (after.response_timeout, after.startup_timeout, after.split_instances) == (9, None, "true")


def test_what_is_given_wins() -> None:
    """TorchServe's marks for "not given" are none."""
    before = running(Registration(url="old.mar", handler="h.py:serve"), batch_size=8, response_timeout=9)
    given = Registration(url="new.mar", handler="new.py:serve", batch_size=4, response_timeout=-1)
    after = taken_over(before, given)

    assert (after.handler, after.batch_size, after.response_timeout) == ("new.py:serve", 4, 9)


@pytest.mark.parametrize("source", ["model-config.yaml", "models= in config.properties", "default"])
def test_what_nobody_asked_for_comes_with_the_new_archive(source: str) -> None:
    """What the old archive's yaml or the settings said is not asked of the new one."""
    after = taken_over(running(batch_size=8, sources={"batch_size": source}), Registration(url="new.mar"))

    assert after.batch_size is None


def test_a_batcher_stays_one() -> None:
    """A version that was registered in KServe's words keeps them, so that V1 answers keep their form."""
    before = running(Registration(url="old.mar", max_batch_size=8, timeout=30), batch_size=8)
    after = taken_over(before, Registration(url="new.mar", batch_size=16))

    assert (after.max_batch_size, after.batch_size, after.timeout, after.has_batcher) == (16, None, 30, True)


@pytest.mark.parametrize(
    ("now", "given", "expected"),
    [
        ((2, 4), {}, (2, 4)),
        ((0, 0), {}, (0, 0)),
        ((2, 4), {"min_workers": 3}, (3, 3)),
        ((2, 4), {"initial_workers": 3, "max_workers": 5}, (3, 5)),
        ((2, 4), {"max_workers": 1}, (1, 1)),
    ],
)
def test_workers(now: tuple[int, int], given: dict[str, int], expected: tuple[int, int]) -> None:
    """As many as there should be, unless they are named."""
    after = taken_over(running(workers=now), Registration(url="new.mar", **cast("Any", given)))

    assert (after.min_workers, after.max_workers) == expected


@pytest.mark.parametrize(
    ("workers", "need", "used", "available", "fits"),
    [
        (2, 600, 100, 200, True),
        (2, 600, 100, 199, False),
        (1, 900, 100, 399, False),
        (1, 900, 100, 400, True),
        (1, 600, 0, 599, False),
        (0, 600, 100, 0, True),
    ],
)
def test_memory(workers: int, need: int, used: int, available: int, fits: bool) -> None:
    """A worker counts what one uses now and what its archive grew by, or without any what its files need."""
    before, after = running(), running(min_workers=workers, max_workers=workers)
    after.pool.need = need * MIB
    if fits:
        check_memory(before, after, used * MIB, available * MIB)
        return
    with pytest.raises(OutOfMemory, match=rf"need about \d+ MiB, and {available} MiB are available"):
        check_memory(before, after, used * MIB, available * MIB)


@pytest.mark.parametrize(("bounds", "count"), [((1, 8), 3), ((4, 8), 4), ((1, 2), 2), ((0, 0), 0)])
def test_as_many_workers_as_there_are(bounds: tuple[int, int], count: int) -> None:
    """Between its bounds a version begins with as many as the one whose place it takes had."""
    after = running(min_workers=bounds[0], max_workers=bounds[1])

    assert worker_count(running(workers=(3, 8)), after) == count


def test_sequences() -> None:
    """They live in the workers, so their model is not replaced."""
    check_replaceable(running())
    with pytest.raises(BadRequest, match="Register the archive as another version"):
        check_replaceable(running(sequence_batching=True))
