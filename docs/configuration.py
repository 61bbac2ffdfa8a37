"""The page docs/configuration.md: every key with its values, default, variable and flag.

``python -m docs.configuration > docs/configuration.md`` regenerates it.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from modelserver.models.settings.settings import KEYS, NOT_YET

if TYPE_CHECKING:
    from modelserver.models.settings.key import Key

_INTRODUCTION = """\
# Configuration

This page is generated from the table of keys in the code, by
`python -m docs.configuration > docs/configuration.md`. [config.properties](../config.properties) is a file
with all keys, which you can use as a template.

## Where settings come from

The server reads the configuration file that `TS_CONFIG_FILE` names, otherwise the one that `--ts-config`
names, otherwise `config.properties` in the current directory. The file has the syntax of Java properties:
`key=value` lines, `#` for comments, and `\\` at the end of a line that continues on the next. `$$NAME$$` in a
value is replaced by the environment variable `NAME`.

If a key is set in several places, the first of these wins:

1. its environment variable; for names beginning with `TS_` only if the file has `enable_envvars_config=true`
2. its flag
3. the file
4. the default: the server's own, or TorchServe's with `compat_defaults=torchserve`
   ([both sets](migrating.md#two-sets-of-defaults)). `TS_COMPAT_DEFAULTS` is always read, and a server
   started as `torchserve` has TorchServe's defaults unless this key is set.

`modelserver --start --print-settings` prints every setting with its value and the source of the value. An
invalid value aborts startup with one line that names the key, the value and the allowed values. A key that is
unknown or has no effect is accepted with one warning line. Another warning line names all `TS_*` variables
that are misspelt or not read.

Options for the batches of a single model are set in its registration or its archive: see
[Batching](batching.md). For the payload log, see [Payload logging](payload-logging.md).

## Keys
"""

_FURTHER = """
## Further environment variables

| variable | meaning |
|---|---|
| `TS_CONFIG_FILE` | The configuration file; overrides `--ts-config`. |
| `LOG_LOCATION` | The folder of log files; by default `logs` in the current directory. |
| `METRICS_LOCATION` | The folder of metrics logs; by default `logs` in the current directory. |
| `TMPDIR` | The folder of the PID file, and of models while they are unpacked. |
| `MODELSERVER_INFERENCE_TOKEN` | Your inference tokens, separated by commas; see [Security](security.md). |
| `MODELSERVER_MANAGEMENT_TOKEN` | Your management tokens. |
| `MODELSERVER_API_TOKEN` | Your tokens for `/token`. |
| `MODELSERVER_PRINT_SETTINGS` | `1` has the effect of `--print-settings`. |
| `MODELSERVER_STARTED_AS` | `torchserve` selects TorchServe's defaults; the [alias](migrating.md) sets it. |
| `MODELSERVER_CONFIG_BENEATH` | The [image's](docker.md) file, for keys that the configuration lacks. |
"""

_HEAD = "\n| key | values | default | set also by | meaning |\n|---|---|---|---|---|\n"


def reference() -> str:
    """The text of the page."""
    sections = (
        f"\n### {group}\n{_HEAD}" + "".join(map(_row, keys))
        for group, keys in groupby(KEYS.values(), key=lambda key: key.group)
    )
    return _INTRODUCTION + "".join(sections) + _FURTHER


def _row(key: Key) -> str:
    default = f"`{table_cell(key.default)}`" if key.default else ""
    if key.torchserve is not None:
        default = f"{default or 'none'}; TorchServe's `{key.torchserve}`"
    setters = ", ".join(f"`{name}`" for name in (key.env, key.flag) if name)
    cells = (f"`{key.name}`", table_cell(key.allowed), default, setters, table_cell(_meaning(key)))
    return f"| {' | '.join(cells)} |\n"


def _meaning(key: Key) -> str:
    if key.name in NOT_YET:
        return f"{key.summary} *No effect yet.*"
    return f"{key.summary} *No effect.*" if key.is_for_java else key.summary


def table_cell(text: str) -> str:
    """Escapes bars, which would end the cell, even in code."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
