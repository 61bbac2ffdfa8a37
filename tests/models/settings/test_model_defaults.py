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


USELESS = ["0", "-1", "1.5", "true", "null", '"abc"', "[1]"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        *((f'"batchSize": {value}', "a whole number above 0 is needed") for value in USELESS),
        ('"batchsize": 8', "it is not a known key; did you mean batchSize?"),
        ('"x": 1', "it is not a known key"),
    ],
)
def test_useless_settings_are_refused(setting, reason):
    text = f'{{"noop": {{"1.0": {{{setting}}}}}}}'
    assert parse_models(text) == {"noop": {"1.0": ModelDefaults()}}
    key, value = setting.replace('"', "", 2).split(": ")
    assert ignored_values(text) == [f"models=noop 1.0 {key}={value} is ignored: {reason}"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a": 1}', '{"a": {"1.0": []}}'])
def test_anything_else_is_an_error(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_models(text)
