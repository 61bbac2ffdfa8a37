from __future__ import annotations

from modelserver.engine.pools.memory_kills import NOTICED, MemoryKills


class Group:
    """A control group that counts, and a clock."""

    def __init__(self, count: int | None = 7) -> None:
        self.count = count
        self.now = 0.0
        self.kills = MemoryKills(lambda: self.count, lambda: self.now)

    def kill(self) -> None:
        """Some process is killed for memory."""
        assert self.count is not None
        self.count += 1


def test_a_kill_is_claimed_once() -> None:
    """One kill explains the end of one worker; those before the server do not count (F43)."""
    group = Group()
    assert group.kills.claim() is False
    group.kill()

    assert [group.kills.claim(), group.kills.claim()] == [True, False]


def test_an_old_kill_is_no_explanation() -> None:
    """A kill that no worker ended by is not taken for the end of a worker much later (F43)."""
    group = Group()
    group.kill()
    for _ in range(2):
        group.now += NOTICED
        group.kills.look()

    assert group.kills.claim() is False


def test_a_kill_may_be_noticed_late() -> None:
    """Somebody may look between a kill and the moment when the end of its worker is seen."""
    group = Group()
    group.now += NOTICED + 1
    group.kill()
    group.kills.look()
    group.now += NOTICED - 1
    group.kills.look()

    assert group.kills.claim() is True


def test_nobody_counts() -> None:
    """Where the kernel does not count for the group, nothing is known."""
    assert Group(None).kills.claim() is None
