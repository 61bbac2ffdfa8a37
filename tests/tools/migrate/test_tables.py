from modelserver.models.settings.settings import KEYS
from modelserver.run.cli import build_parser
from modelserver.tools.migrate import tables


def test_every_key_of_torchserve_is_accepted():
    """What a config.properties of TorchServe may hold is known here, and has a row."""
    assert [name for name in tables.KEYS_OF_TORCHSERVE if name not in KEYS] == []
    assert len(set(tables.KEYS_OF_TORCHSERVE)) == len(tables.KEYS_OF_TORCHSERVE)


def test_every_flag_of_torchserve_is_accepted():
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert [flag for flag in tables.FLAGS if flag not in known] == []


def test_other_defaults_are_other():
    """Where the page says that a default differs from TorchServe's, it does."""
    assert [name for name, value in tables.OTHER_DEFAULTS.items() if KEYS[name].default == value] == []
