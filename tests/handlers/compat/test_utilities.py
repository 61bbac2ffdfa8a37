import collections

import pytest
import yaml

from modelserver_handlers.compat.utilities import CLEANUP_REGEX, deprecated, get_yaml_config, import_class


@pytest.mark.parametrize(
    ("name", "prefix", "expected"),
    [
        ("collections.OrderedDict", None, collections.OrderedDict),
        ("OrderedDict", "collections", collections.OrderedDict),
        ("abc.Mapping", "collections", collections.abc.Mapping),
    ],
)
def test_classes_are_listed_by_name(name, prefix, expected):
    assert import_class(name, prefix) is expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "class name is not defined"),
        ("OrderedDict", r"module name is not defined\."),
        ("collections.Nope", r"class:Nope not found in module:collections\."),
        ("surely_nowhere.X", "No module named 'surely_nowhere'"),
    ],
)
def test_classes_that_are_not_there_are_named(name, message):
    with pytest.raises(ImportError, match=message):
        import_class(name)


def test_yaml_runs_no_code(tmp_path):
    """A document is read, a tag that would make an object is refused (F60)."""
    path = tmp_path / "c.yaml"
    path.write_text("a: [1]")
    assert get_yaml_config(path) == {"a": [1]}

    path.write_text("!!python/object/apply:os.system [echo]")
    with pytest.raises(yaml.YAMLError):
        get_yaml_config(path)


def test_deprecated_functions_warn():
    @deprecated("1.0", "other")
    def old(number):
        return number + 1

    with pytest.warns(PendingDeprecationWarning, match=r"old is deprecated in 1\.0 and moved to other"):
        assert old(1) == 2


def test_cleanup_finds_tags_and_entities():
    assert CLEANUP_REGEX.sub("", "<b>a</b>&amp;&#12;b") == "ab"
