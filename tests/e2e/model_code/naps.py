"""Sleeps as many seconds as a row says; after each of several, all but the last, it answers a part.

Batches may wait at its workers: it has promised that one can be prepared while another is computed.
"""

import os
import time

import numpy

from modelserver_handlers.streaming import send_intermediate_predict_response


class Naps:
    pipelined = True

    def initialize(self, context):
        self.device = None

    def handle(self, data, context):
        return self._ms_complete(self._ms_prepare(data, context), data, context)

    def _ms_prepare(self, data, context):
        return [row["body"] if "body" in row else next(iter(row.values())) for row in data]

    def _ms_complete(self, prepared, data, context):
        return [self.nap(value, context) for value in prepared]

    def nap(self, value, context):
        text = bytes(value).decode() if isinstance(value, bytearray) else str(numpy.ravel(value)[0])
        *first, last = map(float, text.split())
        for seconds in first:
            time.sleep(seconds)
            send_intermediate_predict_response(["part"], context.request_ids, "Intermediate", 200, context)
        time.sleep(last)
        return {"pid": os.getpid()}
