"""Embeddings and rankings, compared with what the network computes for each text alone."""

import json

import pytest
import torch
from tests import tiny_models
from tests.handlers.huggingface.bench import Bench

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.huggingface import Embeddings, Reranking
from modelserver_handlers.language.embedding import EMBEDDINGS, SCORE

pytestmark = pytest.mark.slow

TEXTS = [tiny_models.TEXTS[0], "fox", " ".join(tiny_models.TEXTS * 9), "lazy dog", tiny_models.TEXTS[2]]


@pytest.fixture(autouse=True)
def library():
    pytest.importorskip("transformers")


def states(folder, text, limit=64):
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)(
        text, return_tensors="pt", truncation=True, max_length=limit
    )
    with torch.inference_mode():
        return AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0]


def modules(folder, *kinds, pooling=None):
    listed = [
        {"idx": idx, "path": f"{idx}_{kind}" if idx else "", "type": f"sentence_transformers.models.{kind}"}
        for idx, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_embedding_is_the_mean_of_length_one(tmp_path):
    tiny_models.bert(tmp_path, "Model")
    bench = Bench(Embeddings, tmp_path).load()
    means = torch.stack([states(tmp_path, text).mean(0) for text in TEXTS])
    expected = torch.nn.functional.normalize(means, dim=1)

    assert torch.allclose(torch.tensor(bench.send(*TEXTS)), expected, atol=1e-5)
    (answer,) = bench.send("fox", endpoint=EMBEDDINGS)
    assert answer["tokens"] == len(states(tmp_path, "fox"))
    assert answer["embedding"] == pytest.approx(expected[1].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda rows: rows[0]),
        ({"pooling_mode_lasttoken": True}, lambda rows: rows[-1]),
        ({"pooling_mode": "max"}, lambda rows: rows.amax(0)),
    ],
)
def test_modules_of_sentence_transformers_are_computed(tmp_path, pooling, expected):
    from safetensors.torch import save_file

    tiny_models.bert(tmp_path, "Model")
    modules(tmp_path, "Transformer", "Pooling", "Dense", pooling=pooling)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    layer = torch.nn.Linear(16, 4)
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    save_file(
        {f"linear.{name}": value.data for name, value in layer.named_parameters()},
        tmp_path / "2_Dense" / "model.safetensors",
    )
    answers = torch.tensor(Bench(Embeddings, tmp_path).load().send(*TEXTS))
    with torch.inference_mode():
        rows = torch.stack([layer(expected(states(tmp_path, text, 8))).tanh() for text in TEXTS])

    assert torch.allclose(answers, rows, atol=1e-5)
    longer = torch.tensor(Bench(Embeddings, tmp_path, normalize=True).load().send("fox"))
    assert float(longer.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kinds", "pooling", "problem"),
    [
        (("Transformer", "SpladePooling"), None, "SpladePooling of sentence-transformers is not offered"),
        (("Transformer", "Pooling"), {"pooling_mode": "weightedmean"}, "by weightedmean: one of mean"),
        (("Transformer", "Dense"), None, "1_Dense: a layer with Identity or Tanh"),
    ],
)
def test_unknown_modules_are_named(tmp_path, kinds, pooling, problem):
    tiny_models.bert(tmp_path, "Model")
    modules(tmp_path, *kinds, pooling=pooling)

    with pytest.raises(ModelLoadError, match=problem):
        Bench(Embeddings, tmp_path).load()


@pytest.mark.parametrize("activation", ["", "torch.nn.modules.linear.Identity"])
def test_pairs_are_scored(tmp_path, activation):
    from transformers import AutoTokenizer

    more = {"sentence_transformers": {"activation_fn": activation}} if activation else {}
    network = tiny_models.bert(tmp_path, "ForSequenceClassification", num_labels=1, **more)
    pairs = [["fox", text] for text in TEXTS]
    encode = AutoTokenizer.from_pretrained(tmp_path)
    with torch.inference_mode():
        scores = [
            float(network(**encode(*pair, return_tensors="pt", truncation=True)).logits[0, 0])
            for pair in pairs
        ]
    expected = scores if activation else torch.tensor(scores).sigmoid().tolist()
    bench = Bench(Reranking, tmp_path).load()

    assert bench.send(*pairs) == pytest.approx(expected, abs=1e-5)
    (answer,) = bench.send(["fox", "lazy dog"], endpoint=SCORE)
    assert answer["tokens"] == len(encode("fox", "lazy dog")["input_ids"]) - 3


def test_classifier_of_several_labels_ranks_nothing(tmp_path):
    tiny_models.bert(tmp_path, "ForSequenceClassification")

    with pytest.raises(ModelLoadError, match="a model with one label ranks texts, and this one has 2"):
        Bench(Reranking, tmp_path).load()
