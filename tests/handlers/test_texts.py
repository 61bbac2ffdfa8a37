import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers import texts
from modelserver_handlers.errors import BadInput


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"data": "one"}, "one"),
        ({"body": bytearray(b"tw\xc3\xb6")}, "twö"),
        ({"data": "", "body": "three"}, "three"),
        ({"b64": "Zm91cg=="}, "four"),
        ({"data": {"b64": "Zml2ZQ=="}}, "five"),
        ("six", "six"),
        (b"seven", "seven"),
        ({"data": [3, 0, 1]}, [3, 0, 1]),
    ],
)
def test_forms_of_a_text_are_read(row, text):
    assert texts.text_input(row) == text


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({}, "no text: 'data', 'body' and 'b64' are missing or empty (fields sent: none)"),
        ({"target": 1, "body": ""}, "(fields sent: 'target', 'body')"),
        (b"\xff\xfe", "the text is not UTF-8"),
        ({"b64": "?"}, "the text under b64 is not base64"),
        ({"data": ["a", "b"]}, "a list must hold token numbers"),
        ({"data": [True]}, "a list must hold token numbers"),
        (None, "a text cannot be made of a null"),
        (1.5, "a text cannot be made of a float"),
    ],
)
def test_other_rows_are_refused(row, fault):
    """Anything else is refused in words for the client (F8)."""
    with pytest.raises(BadInput) as refusal:
        texts.text_input(row)

    assert fault in str(refusal.value)


def test_texts_are_cleaned():
    assert texts.remove_html('<p class="x">a &amp; b&#39;s</p><br/>c') == "a  bsc"
    assert texts.remove_accents("naïve Ångström 日本") == "naive Angstrom "
    assert texts.remove_punctuation("U.S.A., x_y 3.5 a-b!") == "USA xy 35 ab"


@given(st.lists(st.text("ab", min_size=1), max_size=8), st.integers(1, 4))
def test_features_are_all_runs(words, longest):
    result = texts.features(words, longest)
    named = [" ".join(words[start:end]) for start, end in result]

    assert named == list(texts.ngrams_iterator(words, longest))
    assert result == sorted(set(result), key=lambda run: (run[1] - run[0], run[0]))
    assert set(result) == {
        (start, end)
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
        if end - start <= longest
    }


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("it isn't", "it is not"),
        ("I can't, you won't", "I cannot, you will not"),
        ("won't've", "will not have"),
        ("They'll say y'all're late", "They will say you all are late"),
        ("it’s", "it is"),
        ("the dog's bone", "the dog's bone"),
        ("'tis", "it is"),
    ],
)
def test_contractions_are_written_out(text, expanded):
    assert texts.expand_contractions(text) == expanded


def test_expanding_is_done_once():
    assert [
        words for words in texts.CONTRACTION_MAP.values() if texts.expand_contractions(words) != words
    ] == []


def test_basic_english_is_torchserves():
    text = 'You can now, install <br /> TorchText; using pip! it\'s (a) "b". x:y?'
    words = "you can now , install torchtext using pip ! it ' s ( a ) b . x y ?"

    assert texts.get_tokenizer("basic_english")(text) == words.split()


def test_other_tokenizers_are_refused():
    assert texts.get_tokenizer(None)("a B  c") == ["a", "B", "c"]
    assert texts.get_tokenizer(len) is len
    with pytest.raises(ValueError, match="spacy"):
        texts.get_tokenizer("spacy")
    with pytest.raises(ValueError, match="only available for English"):
        texts.get_tokenizer("basic_english", "de")
