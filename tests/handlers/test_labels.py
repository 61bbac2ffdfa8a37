import json

import pytest

from modelserver_handlers.labels import Labels, load_label_mapping, map_class_to_label


def written(folder, mapping):
    path = folder / "index_to_name.json"
    path.write_text(json.dumps(mapping), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("mapping", "labels"),
    [
        ({"0": "cat", "1": "dög"}, {"0": "cat", "1": "dög"}),
        ({"0": ["n01", "cat"], "1": ["dog"]}, {"0": "cat", "1": "dog"}),
        ({"object_type_names": ["background", "person"]}, {"0": "background", "1": "person"}),
    ],
)
def test_labels_may_have_several_forms(tmp_path, mapping, labels):
    assert load_label_mapping(written(tmp_path, mapping)) == labels


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (["cat"], r'index->name JSON mapping should be in "class": "label" format\.'),
        *(
            ({"0": label}, r"labels in index->name mapping must be either str or List\[str\]")
            for label in (3, None, {"a": 1}, [], ["a", 1])
        ),
    ],
)
def test_other_mappings_are_refused_in_torchserves_words(tmp_path, mapping, message):
    with pytest.raises(ValueError, match=message):
        load_label_mapping(written(tmp_path, mapping))


def test_labels_follow_the_order_of_classes():
    answers = map_class_to_label([[0.7, 0.2], [0.6, 0.1]], {"0": "cat", "2": "dog"}, [[2, 0], [0, 2]])

    assert answers == [{"dog": 0.7, "cat": 0.2}, {"cat": 0.6, "dog": 0.1}]
    assert list(answers[0]) == ["dog", "cat"]

    assert map_class_to_label([[0.1, 0.9]]) == [{"0": 0.1, "1": 0.9}]


def test_misuse_raises_torchserves_texts():
    with pytest.raises(TypeError, match="Convert classes to list before doing mapping"):
        map_class_to_label(((0.1, 0.9),))
    with pytest.raises(TypeError, match="Mapping must be a dict"):
        map_class_to_label([[0.1]], [("0", "cat")])
    with pytest.raises(KeyError):
        map_class_to_label([[0.1, 0.9]], {"0": "cat"})


@pytest.mark.parametrize(
    ("text", "result", "warns"),
    [
        (json.dumps({"0": "cat", "1": ["n1", "dog"]}), {"0": "cat", "1": "dog"}, False),
        (None, {}, False),
        ("[1]", {}, True),
        ("{", {}, True),
        (json.dumps({"0": 1}), {}, True),
    ],
    ids=["labels", "no file", "a list", "no JSON", "numbers"],
)
def test_labels_of_a_model_are_read_once(tmp_path, caplog, text, result, warns):
    if text is not None:
        (tmp_path / "index_to_name.json").write_text(text)
    labels = Labels(str(tmp_path))

    assert labels() == result
    (tmp_path / "index_to_name.json").write_text("{}")
    assert labels() == result
    assert len(caplog.records) == warns
