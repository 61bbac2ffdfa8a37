import pytest

from modelserver.errors import ConfigError
from modelserver.ext.tokens.keeper import TokenKeeper
from modelserver.ext.tokens.key_file import KeyFile, Token


def test_a_link_is_not_followed(tmp_path, path, clock):
    target = tmp_path / "public"
    target.write_text("kept")
    path.symlink_to(target)
    TokenKeeper({}, None, KeyFile(path), clock)

    assert target.read_text() == "kept"
    assert not path.is_symlink()


def test_a_place_that_cannot_be_written(tmp_path, clock):
    """It stops the start with a line that names the file (reference 16.1)."""
    with pytest.raises(ConfigError, match=r"cannot be written: .*key_file\.json: No such file or directory"):
        TokenKeeper({}, None, KeyFile(tmp_path / "missing" / "key_file.json"), clock)


def test_tokens_do_not_print_themselves():
    """A token in a message or log would be one that all can read."""
    assert repr(Token("secret", 5.0)) == "Token(expires=5.0)"
