import re
from pathlib import Path

from docs.config_properties import example

from modelserver.models.settings.load import load_settings
from modelserver.models.settings.properties import parse
from modelserver.models.settings.settings import KEYS, Settings

_SHIPPED = Path(__file__).parents[1] / "config.properties"


def test_the_shipped_file_is_what_the_table_says(tmp_path):
    """Every line is a comment; with all the '#' of keys taken off, the settings are the defaults."""
    assert parse(_SHIPPED.read_bytes()) == {}

    text = re.sub(r"(?m)^#(?=\w+=)", "", example())
    assert list(parse(text.encode())) == list(KEYS)
    (tmp_path / "config.properties").write_text(text)
    assert load_settings({}, {}, tmp_path).settings == Settings()
