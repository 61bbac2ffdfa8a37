from __future__ import annotations

import time

from modelserver.ext.rollout.spare import EVERY, Spare, seconds_busy


def test_an_idle_loop_has_time() -> None:
    """For as much as there is, until the next look."""
    now, used = [0.0], [0.0]
    spare = Spare(lambda: now[0], lambda: used[0])

    for _ in range(50):
        now[0] += EVERY / 10
        used[0] += EVERY / 100
        assert spare.left()


def test_a_busy_loop_has_time_once_at_each_look() -> None:
    """What must be sent is sent in the end."""
    now, used = [0.0], [0.0]
    spare = Spare(lambda: now[0], lambda: used[0])
    left = []
    for _ in range(int(10 * EVERY / 0.01) + 1):
        now[0] += 0.01
        used[0] += 0.0095
        left.append(spare.left())

    assert sum(left[10:]) in (8, 9, 10)


def test_waiting_for_a_processor_counts_as_being_busy() -> None:
    """The time that a thread has run is the least of what it wanted."""
    before, ran = seconds_busy(), time.thread_time()
    while time.thread_time() < ran + 0.02:
        pass

    assert seconds_busy() - before >= 0.015
