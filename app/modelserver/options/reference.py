"""The page docs/model-config.md: every key of model-config.yaml, and what lies behind the larger ones.

``python -m modelserver.options.reference > docs/model-config.md`` writes it anew.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from modelserver.environments.environment_store import LIMIT as STORE_LIMIT
from modelserver.environments.environments import INSTALL_LIMIT
from modelserver.options.resolve import ModelOptions
from modelserver.options.table import CONFIG_KEYS, FURTHER, HANDLER_KEYS, TITLES, TORCHRUN_KEYS
from modelserver.options.yaml_file import MAX_PROCESSES
from modelserver.pools.ranks import FAILED_GRACE

if TYPE_CHECKING:
    from modelserver.options.option import Option

_INTRODUCTION = """\
# model-config.yaml

This page is made from the table of keys in the code, by `python -m modelserver.options.reference >
docs/model-config.md`.

The file is packed into an archive with `modelserver-archive --config-file model-config.yaml`, and says how
its author wants the model to be served. The server reads the keys of the first tables. The handler gets the
whole document as `context.model_yaml_config`, untouched.

```yaml
batchSize: 8
maxBatchDelay: 50
minWorkers: 1
maxWorkers: 4
handler:
  topk: 3
```

It is YAML of plain values: tags that would build Python objects (`!!python/…`) are refused. A value of the
wrong type is left out with a warning that names archive, key, value and what is allowed, as TorchServe
does; values of keys marked **strict** are refused with the same words instead. Any further key is the
author's own; one that is very like a known key gets one warning with the name of that.

Where a setting is given in several places, the first of these counts: the registration's parameter,
`model-config.yaml`, `models=` in config.properties for this model and version, the key of
config.properties, the default. The tables name what ranks above and below a key. `GET /models/{model}`
shows values with their sources under `batching`.

## Keys of the server
"""

_HEAD = "\n| key | values | default | ranks above | ranks below | meaning |\n|---|---|---|---|---|---|\n"

_FURTHER = f"""
## Several GPUs, several processes

`deviceIds: [2, 3]` gives the first worker GPU 2, the second GPU 3, the third GPU 2 again. Without it
workers take turns on all GPUs, those of all models together. `deviceType: cpu` keeps them off the GPUs.

With a `parallelType`, one worker spans several devices:

```yaml
parallelType: tp             # tp, pp, pptp or custom
torchrun:
  nproc-per-node: 4          # processes of one worker
```

| | processes of one worker | who gets a batch |
|---|---|---|
| `tp`, `pptp`, and `custom` with `torchrun` | `nproc-per-node`, or `parallelLevel` | every process |
| `pp` | `nproc-per-node`, or `parallelLevel` | rank 0 |
| `custom` without `torchrun` | one, which sees `parallelLevel` GPUs as 0, 1, … | that one |
| none | one; `torchrun` and `parallelLevel` have no effect, as in TorchServe | that one |

Each process finds the variables of `torchrun`: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT` and the others, so that `torch.distributed.init_process_group()` needs no
arguments. All processes of a worker see its GPUs as 0, 1, … (`CUDA_VISIBLE_DEVICES`); `gpu_id` of the
context is that of the rank. Without any GPU, they compute on the CPU, for example with `gloo`. Workers take
the GPUs in consecutive groups, and there are no more of them than groups.

```python
class Handler:
    def initialize(self, context):
        torch.distributed.init_process_group("gloo")

    def handle(self, data, context):
        values = torch.tensor([float(bytes(row["body"])) for row in data])
        torch.distributed.all_reduce(values)
        return values.tolist()
```

- Only what rank 0 answers counts; what others return, or whether they do, does not matter. What each prints
  is in the log under its rank.
- The worker is ready when every process has loaded, within `startupTimeout`. The end of one process is the
  end of the worker: all are ended and started again.
- A batch that fails is not tried again in parts, and the next batch is not prepared ahead: processes would
  part ways. If one rank fails alone while rank 0 waits for it, the worker is replaced after
  {FAILED_GRACE:g} seconds.
- `continuousBatching` and `asyncCommunication` are refused together with several processes. Cancelled
  requests are computed.
- One machine only, and at most {MAX_PROCESSES} processes. `describe` shows process and memory of rank 0.
- `MASTER_PORT` is the next free one of the thousand from `initial_distribution_port` on. torch listens
  there on all interfaces: keep it behind a firewall, as with any torch.distributed program.
- Unlike TorchServe, there is no `torchrun` program in between, no log folder `torchelastic_ts`, and each
  process gets its share of the cores instead of one thread unless `OMP_NUMBER_THREADS` says otherwise.

| key of `torchrun` | |
|---|---|
{{torchrun}}
## Packages of a model's own

An archive may bring a requirements file (`modelserver-archive --requirements-file requirements.txt`). It is
installed only where the operator allows it, by `install_py_dep_per_model=true` in config.properties; else
one warning says that it is not.

- Without `useVenv`, pip installs into a folder that comes first on the path of this model's workers, right
  after the archive's own modules. pip does not look at what the server has: a requirement that depends on
  torch brings another torch.
- With `useVenv: true` the model gets a virtual environment that sees the server's packages too, and pip
  installs what is missing there. It is made without requirements, and without `install_py_dep_per_model`,
  too, as in TorchServe.

What the archive brings itself is named by its path: `./tiny-1.0-py3-none-any.whl`, or `--find-links .` with
`--no-index`. pip is run in the archive's folder with the server's environment, so that `PIP_INDEX_URL` and
`pip.conf` count, without what `blacklist_env_vars` hides. Lines with `--hash` are checked by pip. Its
output is in `model_log.log`, line by line, as `<model>_<version>-pip`. If it fails, or takes more than
{INSTALL_LIMIT / 60:.0f} minutes, the registration does, with pip's last lines, and nothing is left.

Environments are kept in `environments` of the cache folder (`$MODELSERVER_CACHE`, else
`$XDG_CACHE_HOME/modelserver`, else `~/.cache/modelserver`) under a hash of the requirements, the local
files that they name, and the Python. TorchServe installs anew at each registration; here the second one,
and other servers, find them there. So requirements without a version stay as they were first installed:
remove the folder to look again. With `MODELSERVER_CACHE=off` they live as long as the server.

The folder is bounded: after an installation, while all environments together have more than
{STORE_LIMIT >> 30} GiB, those that no registered model of any server uses are removed, the longest unused
first; so is what a server left that was killed in the middle of an installation.
"""


def reference() -> str:
    """The text of the page."""
    tables = (option for option in CONFIG_KEYS.values() if option.group != FURTHER)
    sections = (
        f"\n### {title}\n{_HEAD}" + "".join(map(_row, options))
        for title, options in groupby(tables, key=lambda option: TITLES[option.group])
    )
    further = {key: _meaning(option) for key, option in CONFIG_KEYS.items() if option.group == FURTHER}
    special = _pairs("key of the server", further)
    handlers = _pairs("key of handlers", {key.name: key.summary for key in HANDLER_KEYS.values()})
    torchrun = "".join(f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in TORCHRUN_KEYS.items())
    return (
        _INTRODUCTION
        + "".join(sections)
        + f"\n### {TITLES[FURTHER]}\n{special}"
        + f"\n## Keys of handlers\n\nThe server hands these on.\n{handlers}"
        + _FURTHER.replace("{torchrun}", torchrun)
    )


def _row(option: Option) -> str:
    default = default_of(option)
    cells = (
        f"`{option.key}`",
        _cell(option.values.allowed) + " **strict**" * option.is_strict,
        f"`{default}`" if default and " " not in default else default,
        ", ".join(option.ranks_above),
        ", ".join(option.ranks_below),
        _cell(_summary(option)),
    )
    return f"| {' | '.join(cells)} |\n"


def default_of(option: Option) -> str:
    """What a model has where nobody says anything, as the file would name it."""
    if option.default is not None:
        return option.default
    value = getattr(ModelOptions(), option.name, None)
    return str(value).lower() if isinstance(value, int) else ""


def _summary(option: Option) -> str:
    return option.summary[:-1] + "; own." if option.own else option.summary


def _meaning(option: Option) -> str:
    """Of an option whose values have a form of their own."""
    ranks = f" Above it: {', '.join(option.ranks_above)}; below: {', '.join(option.ranks_below)}."
    return f"{option.values.allowed}: {_summary(option)} What cannot be meant is refused.{ranks * option.own}"


def _pairs(title: str, meanings: dict[str, str]) -> str:
    rows = "".join(f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in meanings.items())
    return f"\n| {title} | meaning |\n|---|---|\n{rows}"


def _cell(text: str) -> str:
    """A bar would end the cell, in code too."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
