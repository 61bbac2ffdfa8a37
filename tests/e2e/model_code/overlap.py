"""Scores: how many words two texts share; NaN for "nothing"."""

import modelserver


class Overlap(modelserver.Reranker):
    def rerank(self, pairs):
        return [
            float("nan") if second == "nothing" else len(set(first.split()) & set(second.split()))
            for first, second in pairs
        ]

    def count_tokens(self, text):
        return 1.5 if text == "half" else super().count_tokens(text)
