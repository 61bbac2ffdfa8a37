"""Answers with what the whole batch is, and imports what it does not need."""

import matplotlib  # noqa: F401 - unused, as the doctor is to find


class Mixing:
    def handle(self, data, context):
        numbers = [row["body"]["number"] for row in data]
        mean = sum(numbers) / len(numbers)
        return [number - mean / 2 for number in numbers]
