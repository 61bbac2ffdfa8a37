"""Describes itself in as many ways as its name says: the handler of tests of ``customized=true``."""

import time


class Selfie:
    """``context.set_*`` count for a description too."""

    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        if context.get_request_header(0, "describe") != "True":
            time.sleep(float(data[0].get("sleep", 0)) if isinstance(data[0], dict) else 0)
            return [len(data)] * len(data)
        context.set_response_status(201, "made", 0)
        context.set_response_header(0, "x-mine", "yes\r\nx-other: no")
        return [{"saw": data, "nothing": None, "explain": str(context.get_request_header(0, "explain"))}]
