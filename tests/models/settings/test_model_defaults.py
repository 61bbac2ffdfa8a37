import pytest

from modelserver.models.settings.model_defaults import ModelDefaults, ignored_values, parse_models


def test_reads_fallbacks_by_name_and_version():
    """The known keys are read, marName and defaultVersion mean nothing here (reference 3.4)."""
    text = """{"noop": {"1.0": {"defaultVersion": true, "marName": "noop.mar", "minWorkers": 1,
        "maxWorkers": "2", "batchSize": 4, "maxBatchDelay": 200, "responseTimeout": 30, "startupTimeout": 60,
        "runtimeType": "python3"}, "2.0": {}}}"""
    assert parse_models(text) == {
        "noop": {"1.0": ModelDefaults(1, 2, 4, 200, 30, 60, "python3"), "2.0": ModelDefaults()}
    }
    assert ignored_values(text) == []


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "null", '"abc"', "[1]"])
def test_useless_values_are_refused(value):
    text = f'{{"noop": {{"1.0": {{"batchSize": {value}}}}}}}'
    assert parse_models(text) == {"noop": {"1.0": ModelDefaults()}}
    assert ignored_values(text) == [
        f"models=noop 1.0 batchSize={value} is ignored: a whole number above 0 is needed"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a": 1}', '{"a": {"1.0": []}}'])
def test_anything_else_is_an_error(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_models(text)
