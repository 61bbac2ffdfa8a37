"""Sleeps as many seconds as a row says; after each of several, all but the last, it answers a part.

A row of two fields says with ``path`` where it is noted that it was begun. Batches may wait at its workers:
it has promised that one can be prepared while another is computed.
"""

import os
import time
from pathlib import Path

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
        if isinstance(value, dict):
            with Path(value["path"]).open("a") as notes:
                notes.write(value["name"] + "\n")
            time.sleep(value["seconds"])
        else:
            self.sleep_in_parts(value, context)
        return {"pid": os.getpid()}

    @staticmethod
    def sleep_in_parts(value, context):
        text = bytes(value).decode() if isinstance(value, bytearray) else str(numpy.ravel(value)[0])
        *first, last = map(float, text.split())
        for seconds in first:
            time.sleep(seconds)
            send_intermediate_predict_response(["part"], context.request_ids, "Intermediate", 200, context)
        time.sleep(last)
