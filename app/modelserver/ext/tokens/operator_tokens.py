"""Tokens that the operator provides, in environment variables or in a mounted secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import TypeAlias

from modelserver.errors import ConfigError
from modelserver.surface.auth.scopes import Scope

OperatorTokens: TypeAlias = Mapping[Scope, tuple[str, ...]]

_SHORTEST = 8
_TOKEN = re.compile(r"[!-+\--~]{8,4096}")


def take_from_environment(environ: MutableMapping[str, str]) -> OperatorTokens:
    """Takes the tokens out of the environment, which workers inherit.

    Raises:
        ConfigError: one is not a valid token.
    """
    texts = {scope: environ.pop(scope.variable, "") for scope in Scope}
    return {
        scope: tuple(_checked(re.split(r"[\s,]+", text.strip()), scope.variable))
        for scope, text in texts.items()
        if text.strip()
    }


def read_token_file(path: Path) -> OperatorTokens:
    """The tokens in a file like ``key_file.json``, where entries may also be a token or a list of tokens.

    In a folder (as secrets are mounted) the files ``inference``, ``management`` and ``API`` are read, with a
    token per line.

    Raises:
        ConfigError: it cannot be read, or has another form. The message contains none of its content.
    """
    try:
        if path.is_dir():
            texts = {
                s: path.joinpath(s.value).read_text("utf-8").split()
                for s in Scope
                if (path / s.value).is_file()
            }
        else:
            texts = dict(_in_document(json.loads(path.read_text("utf-8")), path))
    except OSError as error:
        raise ConfigError(f"Invalid configuration: token_file={path}: {error.strerror}") from None
    except ValueError:
        raise _not_tokens(path) from None
    tokens = {
        scope: tuple(_checked(keys, f"token_file={path}, {scope.value}")) for scope, keys in texts.items()
    }
    if not any(tokens.values()):
        raise _not_tokens(path)
    return {scope: keys for scope, keys in tokens.items() if keys}


def joined(*several: OperatorTokens) -> OperatorTokens:
    """All the tokens together."""
    return {
        scope: keys
        for scope in Scope
        if (keys := tuple(key for tokens in several for key in tokens.get(scope, ())))
    }


def _in_document(document: object, path: Path) -> Iterable[tuple[Scope, list[str]]]:
    if not isinstance(document, dict):
        raise _not_tokens(path)
    for scope in Scope:
        entry = document.get(scope.value, [])
        keys = entry.get("key") if isinstance(entry, dict) else entry
        keys = keys if isinstance(keys, list) else [keys]
        if not all(isinstance(key, str) for key in keys):
            raise _not_tokens(path)
        yield scope, keys


def _checked(keys: Iterable[str], where: str) -> Iterable[str]:
    for key in keys:
        if _TOKEN.fullmatch(key) is None:
            raise ConfigError(
                f"Invalid configuration: {where}: a token has at least {_SHORTEST} characters, "
                "without spaces and commas"
            )
        yield key


def _not_tokens(path: Path) -> ConfigError:
    return ConfigError(
        f'Invalid configuration: token_file={path}: JSON like {{"inference": ["token"], '
        '"management": ["token"], "API": ["token"]}, or a folder with files of these names, is needed'
    )
