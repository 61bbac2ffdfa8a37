import pickle
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.vocabulary import Vocabulary, load_vocabulary


@pytest.mark.parametrize(
    "content",
    [
        {"<unk>": 0, "a": 1, "b": 2},
        OrderedDict([("<unk>", 0), ("a", 1), ("b", 2)]),
        ["<unk>", "a", "b"],
        {"tokens": ["<unk>", "a", "b"], "default_index": 0},
        {"tokens": {"<unk>": 0, "a": 1, "b": 2}, "default_index": 0},
    ],
    ids=["dict", "ordered", "list", "own, list", "own"],
)
def test_forms_of_a_vocabulary_are_read(content, tmp_path):
    torch.save(content, tmp_path / "v.pt")
    vocabulary = load_vocabulary(tmp_path / "v.pt")

    assert dict(vocabulary.ids) == {"<unk>": 0, "a": 1, "b": 2}
    assert vocabulary.numbers(["b", "c"]) == [2, 0]
    assert (vocabulary["b"], vocabulary["c"], "c" in vocabulary, len(vocabulary)) == (2, 0, False, 3)


def test_unknown_words_have_no_number(tmp_path):
    torch.save(["a", "b"], tmp_path / "v.pt")
    vocabulary = load_vocabulary(tmp_path / "v.pt")

    assert vocabulary.numbers(["b", "c"]) == [1, None]
    with pytest.raises(KeyError):
        vocabulary["c"]


def test_what_is_saved_is_loaded(tmp_path):
    vocabulary = Vocabulary.of_tokens(["x", "y", "x"], default=1)
    vocabulary.save(tmp_path / "v.pt")

    assert load_vocabulary(tmp_path / "v.pt") == vocabulary == Vocabulary({"x": 0, "y": 1}, 1)


@pytest.mark.parametrize(
    "content",
    [
        {"a": 1, "b": 1},
        {"a": -1},
        {"a": "1"},
        {1: 2},
        ["a", 2],
        torch.zeros(2),
        {"tokens": ["a"], "default_index": "a"},
        {"tokens": 5, "default_index": 0},
        None,
    ],
)
def test_other_contents_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "v.pt")

    with pytest.raises(ModelLoadError, match=r"v\.pt holds no vocabulary: a mapping of tokens"):
        load_vocabulary(tmp_path / "v.pt")


class Greedy:
    """Unpickling this would run code."""

    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


def test_code_is_never_run(tmp_path, monkeypatch):
    """A pickle that calls something is refused, and nothing is called (F61)."""
    monkeypatch.chdir(tmp_path)
    torch.save(Greedy(), tmp_path / "v.pt")

    with pytest.raises(ModelLoadError, match="it holds more than text and numbers"):
        load_vocabulary(tmp_path / "v.pt")
    assert not (tmp_path / "ran").exists()


def test_torchtexts_vocab_is_refused_with_the_way_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "v.pt", "w") as file:
        file.writestr("v/data.pkl", b"\x80\x02ctorchtext.vocab.vocab\nVocab\nq\x00)\x81q\x01.")
        file.writestr("v/version", b"3\n")
        file.writestr("v/byteorder", b"little")

    with pytest.raises(ModelLoadError) as refusal:
        load_vocabulary(tmp_path / "v.pt")

    assert "it is a Vocab of torchtext" in str(refusal.value)
    assert "torch.save({'tokens': vocab.get_stoi()" in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"no file of torch.save", pickle.dumps(Counter("aab"), 2)[:9]])
def test_damaged_and_missing_files_are_named(content, tmp_path):
    with pytest.raises(ModelLoadError, match=r"Missing the v\.pt file"):
        load_vocabulary(tmp_path / "v.pt")
    (tmp_path / "v.pt").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"v\.pt"):
        load_vocabulary(tmp_path / "v.pt")


def test_it_speaks_as_torchtexts():
    vocabulary = Vocabulary({"a": 2, "b": 0})

    assert vocabulary(["b", "a", "b"]) == [0, 2, 0]
    assert vocabulary.get_stoi() == {"a": 2, "b": 0}
    assert vocabulary.get_itos() == ["b", "", "a"]
    with pytest.raises(KeyError):
        vocabulary(["c"])
