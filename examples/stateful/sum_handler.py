"""Adds up the numbers of each sequence: a minimal stateful handler."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class RunningSum:
    """Answers each number with the sum of its sequence so far. A sequence that reaches 100 ends."""

    GOAL = 100

    def initialize(self, context: Any) -> None:
        # The maximum number of live sequences. A handler is not notified when an idle sequence expires, so it
        # must limit what it keeps; the least recently used sum is dropped first.
        self.most = int(context.model_yaml_config["maxNumSequence"])
        self.sums: OrderedDict[str, float] = OrderedDict()

    def handle(self, data: list[Any], context: Any) -> list[Any]:
        return [self.step(idx, row.get("body"), context) for idx, row in enumerate(data)]

    def step(self, idx: int, number: Any, context: Any) -> Any:
        """One step of one sequence; a batch has at most one request of each."""
        if not isinstance(number, (int, float)):
            context.reject(idx, "A JSON number is needed.")
            return None
        sequence = context.get_sequence_id(idx)
        before = self.sums.pop(sequence, 0)
        if self.says(idx, context.header_key_sequence_start, context):
            before = 0
        total = before + number
        if total >= self.GOAL:
            context.set_response_header(idx, context.header_key_sequence_end, sequence)
        elif not self.says(idx, context.header_key_sequence_end, context):
            self.sums[sequence] = total
            while len(self.sums) > self.most:
                self.sums.popitem(last=False)
        return {"sequence": sequence, "sum": total}

    @staticmethod
    def says(idx: int, header: str, context: Any) -> bool:
        return bool(context.get_request_header(idx, header) == "true")
