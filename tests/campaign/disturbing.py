"""Changes that are made by chance to a server under load."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import httpx
from tests.e2e.serving import Server

Change = Callable[[], httpx.Response | None]


class Disturbance:
    """Makes one change after another. ``done`` counts by name; ``refused``: answers without a cause."""

    def __init__(self, server: Server, end: float) -> None:
        self.server, self.end = server, end
        self.done: Counter[str] = Counter()
        self.refused: list[str] = []
        self.chance = random.Random(7)

    def changes(self) -> Sequence[Change]:
        """Each as often as it is to be made in proportion."""
        raise NotImplementedError

    def run(self) -> None:
        changes = self.changes()
        while time.monotonic() < self.end:
            change = self.chance.choice(changes)
            answer = change()
            self.done[change.__name__] += 1
            if answer is not None and answer.status_code >= 500:
                self.refused.append(f"{change.__name__}: {answer.status_code} {answer.text[:200]}")
            time.sleep(self.chance.uniform(0.05, 0.4))
