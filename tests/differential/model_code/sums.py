"""Adds up the numbers of each sequence; ends one that says so."""


class Sums:
    def initialize(self, context):
        self.sums = {}

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            body = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
            sequence = context.get_sequence_id(index)
            started = context.get_request_header(index, context.header_key_sequence_start)
            self.sums[sequence] = self.sums.get(sequence, 0) + int(body)
            generated = sequence.startswith("ts-seq-")
            answers.append(
                {"sum": self.sums[sequence], "started": started, "id": None if generated else sequence}
            )
        return answers
