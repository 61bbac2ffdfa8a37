"""Handlers of texts: whole batches, numbers equal to the network's own, steps that can be overridden."""

import json

import pytest
import torch
from tests.handlers.conftest import alone

from modelserver_handlers.errors import ModelLoadError, PredictionException


def test_a_batch_is_answered_whole(make_classifier, begin):
    handler = make_classifier()
    rows = [
        {"data": "The <b>cat</b> sat!"},
        {"body": bytearray(b"It isn't a cat.")},
        {"data": [5, 4]},
        {"b64": "dGhlIG1hdA=="},
        {"data": "?!"},
    ]
    begin(handler.context, len(rows))

    answers = handler.handle(rows, handler.context)

    numbers = [[1, 2, 3, 8, 9], [0, 6, 7, 0, 2, 0, 10, 0, 0], [5, 4], [1, 5, 0], []]
    assert [list(answer) for answer in answers] == [["0", "1", "2"]] * 5
    for answer, ids in zip(answers, numbers, strict=True):
        assert list(answer.values()) == pytest.approx(alone(handler, ids), abs=1e-5)


def test_bad_texts_are_rejected_alone(make_classifier, begin):
    """What is no text gets its own 400, its neighbours their answers (F8)."""
    handler = make_classifier()
    state = begin(handler.context, 5)
    rows = [{"data": "the cat"}, {"body": b"\xff"}, {"data": [99]}, {"body": b""}, {"data": "the mat"}]

    answers = handler.handle(rows, handler.context)

    assert [answer is None for answer in answers] == [False, True, True, True, False]
    assert {idx: status for idx, (status, _) in state.rejections.items()} == {1: 400, 2: 400, 3: 400}
    assert "token numbers must be from 0 to 10" in state.rejections[2][1]


def test_labels_topk_and_ngrams_count(make_classifier, begin, tmp_path):
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "bad", "1": "fair", "2": "good"}))
    handler = make_classifier({"handler": {"topk": 2, "ngrams": 1}})
    begin(handler.context)

    (answer,) = handler.handle(["the cat"], handler.context)

    scores = dict(zip(("bad", "fair", "good"), alone(handler, [1, 2]), strict=True))
    best = sorted(scores, key=lambda label: -scores[label])[:2]
    assert list(answer) == best
    assert [answer[label] for label in best] == pytest.approx([scores[label] for label in best])


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_explanations_add_up(mode, make_classifier, begin):
    handler = make_classifier(mode=mode)
    rows = [{"data": "the cat sat", "target": 2}, {"data": "on the mat"}, {"data": "cat", "target": "1"}]
    begin(handler.context, 3, explain="True")

    answers = handler.handle(rows, handler.context)

    assert [answer["words"] for answer in answers] == [["the", "cat", "sat"], ["on", "the", "mat"], ["cat"]]
    with torch.inference_mode():
        empty = handler.model(torch.tensor([], dtype=torch.int64), torch.tensor([0]))[0]
        for answer, ids, target in zip(
            answers, ([1, 2, 3, 8, 9], [4, 1, 5, 0, 0], [2]), (2, 0, 1), strict=True
        ):
            full = handler.model(torch.tensor(ids), torch.tensor([0]))[0]
            assert len(answer["importances"]) == len(answer["words"])
            assert sum(answer["importances"]) == pytest.approx((full - empty)[target].item(), abs=1e-5)


def test_empty_texts_are_explained(make_classifier, begin):
    handler = make_classifier()
    begin(handler.context, 2, explain="True")

    answers = handler.handle(["!", "cat"], handler.context)

    assert answers[0] == {"importances": [], "words": []}
    assert len(answers[1]["importances"]) == 1


@pytest.mark.parametrize(
    ("mode", "linear", "target", "status"),
    [("mean", False, 3, 400), ("max", False, 0, 501), ("mean", True, 0, 501)],
)
def test_unknown_classes_and_opaque_networks_are_not_explained(
    mode, linear, target, status, make_classifier, begin
):
    handler = make_classifier(mode=mode)
    if linear:
        handler.model = torch.nn.Linear(1, 1)
    begin(handler.context, explain="True")

    with pytest.raises(PredictionException) as refusal:
        handler.handle([{"data": "cat", "target": target}], handler.context)
    assert refusal.value.error_code == status
    assert status == 501 or "the model has no class 3" in refusal.value.message


def test_unknown_words_are_left_out_without_a_number_for_them(make_classifier, begin):
    handler = make_classifier(words={"cat": 4, "the": 2})
    begin(handler.context)

    (answer,) = handler.handle(["the grey cat"], handler.context)

    assert list(answer.values()) == pytest.approx(alone(handler, [2, 4]), abs=1e-5)


def test_the_manifest_names_the_vocabulary(make_classifier, tmp_path):
    """``sourceVocab`` names another file, which must be the archive's own (F59)."""
    torch.save(["one"], tmp_path / "other.pt")

    assert len(make_classifier(sourceVocab="other.pt").source_vocab) == 1
    with pytest.raises(ModelLoadError, match=r"sourceVocab must be a file of the archive, got '\.\./x\.pt'"):
        make_classifier(sourceVocab="../x.pt")


def test_helpers_and_misspelt_step_of_torchserve_are_there(make_classifier):
    handler = make_classifier()
    attributions = torch.tensor([[[1.0, 2.0], [0.0, 4.0], [-1.0, 1.0]]])

    assert handler.get_word_token([2, 1, "cat"]) == ["cat", "the", "cat"]
    assert handler.summarize_attributions(attributions).tolist() == pytest.approx([0.6, 0.8, 0.0])

    assert handler._remove_puncutation("a, b.") == "a b"

    handler._remove_puncutation = lambda text: text.replace("x", "")
    assert handler.cleaned_words("xthe, cat") == ["the", ",", "cat"]
