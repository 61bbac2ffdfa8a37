import pytest

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings


def load(tmp_path, text=None, flags=None, environ=None):
    if text is not None:
        (tmp_path / "config.properties").write_text(text)
    return load_settings(flags or {}, environ or {}, tmp_path)


def refusal_of(tmp_path, text, flags=None):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text, flags)
    message = str(error.value)
    assert "\n" not in message
    return message
