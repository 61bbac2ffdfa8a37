"""Ends with a row that it does not like, and leaves a process behind with each call."""

import os


class Ending:
    def handle(self, data, context):
        os.posix_spawn("/bin/true", ["true"], {})
        if any(not isinstance(row["body"], dict) for row in data):
            os._exit(3)
        return [row["body"]["number"] for row in data]
