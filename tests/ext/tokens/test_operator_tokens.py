import json

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.tokens.operator_tokens import joined, read_token_file, take_from_environment
from modelserver.surface.auth.scopes import Scope


def test_tokens_are_taken_out_of_the_environment():
    environ = {
        "MODELSERVER_INFERENCE_TOKEN": "old-token, new-token",
        "MODELSERVER_API_TOKEN": " api-token ",
        "MODELSERVER_MANAGEMENT_TOKEN": "",
        "HOME": "/root",
    }
    tokens = {Scope.INFERENCE: ("old-token", "new-token"), Scope.API: ("api-token",)}
    assert take_from_environment(environ) == tokens
    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("document", "inference"),
    [
        ({"inference": "one-token"}, ("one-token",)),
        ({"inference": ["one-token", "two-token"]}, ("one-token", "two-token")),
        ({"inference": {"key": "one-token", "expiration time": "x"}}, ("one-token",)),
        ({"inference": {"key": ["one-token", "two-token"]}, "else": 1}, ("one-token", "two-token")),
    ],
)
def test_token_file_is_read(tmp_path, document, inference):
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(document))
    assert read_token_file(path) == {Scope.INFERENCE: inference}


def test_token_folder_is_read(tmp_path):
    (tmp_path / "inference").write_text("one-token\ntwo-token\n")
    (tmp_path / "API").write_text("api-token")
    (tmp_path / "other").write_text("x")
    tokens = {Scope.INFERENCE: ("one-token", "two-token"), Scope.API: ("api-token",)}
    assert read_token_file(tmp_path) == tokens


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "secret-x", '{"inference": 5}', '{"inference": [null]}', '{"inference": {}}', "\x00"],
)
def test_invalid_file_is_refused_without_its_content(tmp_path, text):
    """What is no tokens is refused by name, without a word of its content (F68)."""
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="token_file=") as caught:
        read_token_file(path)
    assert "secret-x" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"token_file=.*nope: No such file or directory"):
        read_token_file(tmp_path / "nope")


@pytest.mark.parametrize(
    "token", ["zq7", "with space in", "tab\there-and", "\u20ac" * 8, "x" * 5000], ids=range(5)
)
def test_invalid_token_is_refused_without_being_named(tmp_path, token):
    """A token that no header can carry, or that can be guessed, is refused without being shown (F68)."""
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"inference": token}))
    with pytest.raises(ConfigError, match="a token has at least 8 characters") as caught:
        read_token_file(path)
    assert token not in str(caught.value)


def test_tokens_of_several_sources_are_joined():
    sources = {Scope.API: ("a",)}, {Scope.API: ("b",), Scope.INFERENCE: ("c",)}, {}
    assert joined(*sources) == {Scope.INFERENCE: ("c",), Scope.API: ("a", "b")}
