"""Counts down from its body, a step per call; for continuous batching."""


class Steps:
    def initialize(self, context):
        self.left = {}

    def handle(self, data, context):
        ids = [context.get_request_id(index) for index in range(len(data))]
        for name, row in zip(ids, data, strict=True):
            if row:
                self.left[name] = int(row["body"] if isinstance(row["body"], str) else bytes(row["body"]))
        answers = [f"{self.left[name]};" for name in ids]
        for name in ids:
            self.left[name] -= 1
        context.stopping_criteria = [lambda answer, name=name: self.left[name] <= 0 for name in ids]
        return answers
