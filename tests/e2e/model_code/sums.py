"""A running sum per sequence; what it says of each step is what tests compare."""

import json
import os
import time


class Sums:
    def initialize(self, context):
        self.sums = {}
        self.steps = 0

    def handle(self, data, context):
        answers = []
        ids = [context.get_sequence_id(index) for index in range(len(data))]
        for index, row in enumerate(data):
            order = row.get("body")
            if isinstance(order, (bytes, bytearray)):
                order = json.loads(order or b"{}")
            if isinstance(order, int):
                order = {"add": order}
            name = ids[index]
            self.sums.setdefault(name, []).append(order.get("add", 0))
            if order.get("sleep"):
                time.sleep(order["sleep"])
            if order.get("die"):
                os._exit(3)
            if order.get("raise"):
                raise ValueError("as it was told")
            if order.get("end"):
                context.set_response_header(index, context.header_key_sequence_end, order["end"])
            self.steps += 1
            start = context.get_request_header(index, context.header_key_sequence_start)
            answers.append(
                {"id": name, "seen": self.sums[name], "pid": os.getpid(), "with": ids, "start": start}
            )
        return answers
