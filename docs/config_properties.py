"""The shipped config.properties: every key as a comment, with its default and a line of explanation.

``python -m docs.config_properties > config.properties`` regenerates it.
"""

from __future__ import annotations

import sys
from itertools import groupby

from modelserver.models.settings.key import TORCHSERVE, Key
from modelserver.models.settings.settings import KEYS, NOT_YET

_HEADER = """\
# Settings of modelserver, found as ./config.properties, --ts-config FILE or TS_CONFIG_FILE.
# Every line is a comment: remove the '#' to set a key. The values shown are the defaults.
#
# With enable_envvars_config=true, a variable TS_<KEY> overrides the key; flags override this file.
# Variables named MODELSERVER_<...> are always read; docs/configuration.md lists them.
# $$NAME$$ inside a value is replaced by the environment variable NAME.
"""


def example() -> str:
    """The text of the file."""
    sections = (
        f"\n# ---- {group} ----\n" + "".join(map(_entry, keys))
        for group, keys in groupby(KEYS.values(), key=lambda key: key.group)
    )
    return _HEADER + "".join(sections)


def _entry(key: Key) -> str:
    return f"\n# {key.summary} {_note(key)}\n#{key.name}={key.default}\n"


def _note(key: Key) -> str:
    notes = [key.allowed]
    if key.torchserve is not None:
        notes.append(f"with compat_defaults={TORCHSERVE}: {key.torchserve}")
    if key.name in NOT_YET:
        notes.append("no effect yet")
    elif key.is_for_java:
        notes.append("no effect")
    return f"({'; '.join(notes)})"


if __name__ == "__main__":
    sys.stdout.write(example())
