"""Scores: how many words two texts share."""

import modelserver


class Overlap(modelserver.Reranker):
    def rerank(self, pairs):
        return [len(set(first.split()) & set(second.split())) for first, second in pairs]
