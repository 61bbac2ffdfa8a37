"""Answers in parts, as the JSON bodies of a batch say; what it does is noted in files that they name.

``parts``: texts, ``last``: the returned one; ``gates``: a directory where a file `<step>` lets a step begin;
``endless``: a part of so many bytes again and again; ``large``: so many parts of a megabyte;
``fail_at``: the step at which ``how`` happens;
``status``, ``headers``: of the answer; ``notes``: a file for what happened.
"""

import itertools
import os
import signal
import time
from pathlib import Path

from modelserver_handlers.streaming import send_intermediate_predict_response

PATIENCE = 20.0


class Parts:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        orders = [row.get("body", row) for row in data]
        first = orders[0]
        for idx, order in enumerate(orders):
            context.set_response_status(order.get("status", 200), idx=idx)
            for name, value in order.get("headers", {}).items():
                context.set_response_header(idx, name, value)
        if first.get("generator"):
            return [self.generate(order, idx) for idx, order in enumerate(orders)]
        try:
            for step in self.steps(orders):
                self.wait_for_gate(first, step)
                for order in orders:
                    self.fail(order, step)
                parts = [self.part(order, step) for order in orders]
                send_intermediate_predict_response(parts, context.request_ids, "Intermediate", 200, context)
            note(first, "complete")
        finally:
            note(first, "left")
        return [order.get("last", "") for order in orders]

    def steps(self, orders):
        if any("endless" in order for order in orders):
            return itertools.count()
        if "large" in orders[0]:
            return range(orders[0]["large"])
        return range(max(len(order.get("parts", ())) for order in orders))

    def part(self, order, step):
        if "endless" in order:
            time.sleep(0.002)
            return b"x" * order["endless"]
        if "large" in order:
            return bytes([step]) * (1 << 20)
        parts = order.get("parts", [])
        return parts[step] if step < len(parts) else ""

    def generate(self, order, idx):
        try:
            for step, part in enumerate(order["parts"]):
                self.fail(order, step)
                yield part
            if order.get("endless"):
                while True:
                    yield self.part(order, 0)
        finally:
            note(order, "closed")

    @staticmethod
    def wait_for_gate(order, step):
        deadline = time.monotonic() + PATIENCE
        while "gates" in order and not (Path(order["gates"]) / str(step)).exists():
            if time.monotonic() > deadline:
                raise TimeoutError("no gate")
            time.sleep(0.002)

    @staticmethod
    def fail(order, step):
        if order.get("fail_at") != step:
            return
        if order["how"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if order["how"] == "hangs":
            time.sleep(PATIENCE)
        raise ValueError("told to fail")


def note(order, what):
    if "notes" in order:
        with Path(order["notes"]).open("a") as notes:
            notes.write(what + "\n")
