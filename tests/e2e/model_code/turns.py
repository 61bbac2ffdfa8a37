"""Continuous batching: each request `{"name", "turns"}` gets so many parts; a file notes the batches."""

import json
import time
from pathlib import Path


class Turns:
    def initialize(self, context):
        self.left = {}
        self.notes = None

    def handle(self, data, context):
        ids = context.request_ids
        for idx, row in enumerate(data):
            if row:
                self.left[ids[idx]] = dict(row["body"], taken=0)
                self.notes = row["body"].get("notes") or self.notes
        for known in self.left.keys() - set(ids.values()):
            del self.left[known]
        requests = [self.left[ids[idx]] for idx in range(len(data))]
        self.note(data, requests)
        for request in requests:
            request["taken"] += 1
            if request.get("fail_at") == request["taken"]:
                raise ValueError("told to fail")
        context.stopping_criteria = [self.criterion(request) for request in requests]
        time.sleep(0.005)
        return [f"{request['name']}{request['taken']} " for request in requests]

    @staticmethod
    def criterion(request):
        return lambda answer: request["taken"] >= request["turns"]

    def note(self, data, requests):
        if self.notes:
            new = [request["name"] for row, request in zip(data, requests, strict=True) if row]
            line = json.dumps({"batch": [request["name"] for request in requests], "new": new})
            with Path(self.notes).open("a") as notes:
                notes.write(line + "\n")
