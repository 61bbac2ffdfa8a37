import time

from modelserver.ext.rollout.shadow import EVERY, Spare, seconds_busy


def test_idle_loop_has_time_unless_a_processor_is_waited_for():
    now, used = [0.0], [0.0]
    spare = Spare(lambda: now[0], lambda: used[0])

    for _ in range(50):
        now[0] += EVERY / 10
        used[0] += EVERY / 100
        assert spare.left()

    before, ran = seconds_busy(), time.thread_time()
    while time.thread_time() < ran + 0.02:
        pass

    assert seconds_busy() - before >= 0.015


def test_a_busy_loop_has_time_once_at_each_look():
    """What must be sent is sent in the end."""
    now, used = [0.0], [0.0]
    spare = Spare(lambda: now[0], lambda: used[0])
    left = []
    for _ in range(int(10 * EVERY / 0.01) + 1):
        now[0] += 0.01
        used[0] += 0.0095
        left.append(spare.left())

    assert sum(left[10:]) in (8, 9, 10)
