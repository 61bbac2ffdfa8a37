"""``modelserver.EmbeddingModel`` and ``modelserver.Reranker``: one result for each row of a batch."""

import base64
import json
from typing import Any

import numpy
import pytest
import torch

import modelserver
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.embedding import EMBEDDINGS, RERANK


class Letters(modelserver.EmbeddingModel):
    """Counts letters."""

    result: Any = staticmethod(numpy.array)

    def embed(self, texts):
        return self.result([[text.count("a"), text.count("b")] for text in texts])


class Shared(modelserver.Reranker):
    """Counts the words that both texts have."""

    def rerank(self, pairs):
        return [len(set(query.split()) & set(document.split())) for query, document in pairs]


def run(model, *rows, endpoint=EMBEDDINGS, parameters=None):
    """The answers to rows as a worker gives them, and which were rejected."""
    context = Context("m", "/", None, 8, None, "0")
    model.initialize(context)
    count = len(rows)
    properties, options = [{"url_path": endpoint}] * count, [lambda: parameters or {}] * count
    context._ms_begin(BatchState([str(n) for n in range(count)], properties=properties, parameters=options))
    return model.handle([{"body": row} for row in rows], context), context._ms_rejections


@pytest.mark.parametrize("result", [numpy.array, torch.tensor, list])
def test_vectors_are_arrays_tensors_or_lists(result):
    model = Letters()
    model.result = result

    assert run(model, "aab", "x y")[0] == [
        {"embedding": [2.0, 1.0], "tokens": 1},
        {"embedding": [0.0, 0.0], "tokens": 2},
    ]
    assert json.dumps(run(model, b"aab", endpoint="")[0]) == "[[2.0, 1.0]]"


def test_vector_is_sent_as_the_client_wants_it():
    (encoded,), _ = run(Letters(), "aab", parameters={"encoding_format": "base64"})
    (short,), _ = run(Letters(), "aab", parameters={"dimensions": 1})

    assert numpy.frombuffer(base64.b64decode(encoded["embedding"]), "<f4").tolist() == [2.0, 1.0]
    assert short["embedding"] == [1.0]


@pytest.mark.parametrize("size", [0, 3, "2"])
def test_vector_of_another_size_is_refused(size):
    assert run(Letters(), "a", parameters={"dimensions": size})[1] == {
        0: (400, f"dimensions must be from 1 to 2, and is {size}")
    }


def test_bad_row_fails_alone():
    answers, rejected = run(Letters(), "a", 7, "b")

    assert [answer and answer["embedding"] for answer in answers] == [[1.0, 0.0], None, [0.0, 1.0]]
    assert rejected == {1: (400, "a text is needed, got 7")}


def test_pairs_get_scores():
    pairs = [["a b", "b c"], ["a", "c"]]
    answers, rejected = run(Shared(), *pairs, ["a"], endpoint=RERANK)

    assert answers == [{"score": 1.0, "tokens": 4}, {"score": 0.0, "tokens": 2}, None]
    assert list(rejected) == [2]
    assert run(Shared(), pairs[0], endpoint="")[0] == [1.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_result_that_is_no_finite_number_fails_alone(bad):
    """JSON has none, and no client could use it."""

    class Unsure(modelserver.Reranker):
        def rerank(self, pairs):
            return [0.5, bad][: len(pairs)]

    model = Letters()
    model.result = lambda vectors: [vectors[0], [bad, 1.0]]
    failure = {1: (500, f"The model's result is {bad}, which is no finite number.")}

    assert run(Unsure(), ["a", "b"], ["c", "d"], endpoint=RERANK)[1] == failure
    assert run(model, "a", "b")[1] == failure


def test_wrong_number_of_results_fails_the_batch():
    class Forgetful(modelserver.Reranker):
        def rerank(self, pairs):
            return []

    with pytest.raises(PredictionException, match="0 results came for 1 inputs"):
        run(Forgetful(), ["a", "b"], endpoint=RERANK)
