"""Sequences with continuous batching: `{"add", "parts"}` is the sum so far, in that many parts.

Those before there is a file named ``until`` do not count.
"""

import os
import time


class Talks:
    def initialize(self, context):
        self.sums = {}
        self.left, self.until = {}, {}

    def handle(self, data, context):
        answers, criteria = [], []
        for idx, row in enumerate(data):
            request, sequence = context.get_request_id(idx), context.get_sequence_id(idx)
            if row:
                order = row["body"]
                self.sums[sequence] = self.sums.get(sequence, 0) + order["add"]
                self.left[request], self.until[request] = order["parts"], order.get("until", "/")
            self.left[request] -= os.path.exists(self.until[request])
            if self.sums[sequence] >= 100:
                context.set_response_header(idx, context.header_key_sequence_end, sequence)
            answers.append(f"{self.sums[sequence]}/{len(data)} ")
            criteria.append(lambda _, request=request: self.left[request] <= 0)
        context.stopping_criteria = criteria
        time.sleep(0.01)
        return answers
