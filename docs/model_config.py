"""The page docs/model-config.md: every key of model-config.yaml, and details of the larger ones.

``python -m docs.model_config > docs/model-config.md`` regenerates it.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from docs.configuration import table_cell

from modelserver.engine.pools.ranks import FAILED_GRACE
from modelserver.ext.packages.environments import INSTALL_LIMIT
from modelserver.models.environments.shared_cache import SharedCache
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.options.table import CONFIG_KEYS, FURTHER
from modelserver.models.options.yaml_file import MAX_PROCESSES
from modelserver.models.settings.model_defaults import ModelDefaults

if TYPE_CHECKING:
    from modelserver.models.options.option import Option

MODELS = "`models=`"

# Of the groups of keys, by their numbers.
_TITLES = (
    "Workers and batches",
    "Workers and batches",
    "Times",
    "Devices and processes",
    "Other machines",
    "Ways of serving",
    "Sequences",
    "Environment",
    "Open Inference Protocol",
    "Further forms",
)
_HANDLER_KEYS = {
    "handler": "Settings that the handler reads itself.",
    "pt2": "`{compile: {enable: true, backend: inductor, …}}`: `torch.compile` with these arguments; "
    "`{export: {aot_compile: true}}`: the serialized file is a `.so` compiled by AOTInductor. "
    "Older forms, with a warning: the name of a backend, or arguments without `compile`.",
    "optimize": "`auto` or `off`, also under `handler` ([Faster models](faster-models.md)).",
    "precision": "`tf32`, `fp32`, `bf16` or `int8`, under `handler` too ([Faster models](faster-models.md)).",
    "warmup": "`true`, `false` or `{shape: […]}`, also under `handler`.",
    "micro_batching": "`{micro_batch_size: N, parallelism: {preprocess: N, inference: N, postprocess: N}}`, "
    "for handlers that use micro batching.",
    "onnx": "For handlers of ONNX models.",
    "deepspeed": "`{config: FILE, checkpoint: FILE}`, for handlers that use DeepSpeed.",
    "pippy": "For handlers that use pipeline parallelism.",
    "dali": "For handlers that use DALI.",
}
_TORCHRUN_KEYS = {
    "nproc-per-node": "Processes per worker; by default 1.",
    "OMP_NUMBER_THREADS": "Threads of each process; by default its share of the cores.",
    "nnodes": "1: a worker runs on one machine; other values are refused.",
    "node-rank": "0; other values are refused.",
    "rdzv-backend": "No effect: not needed on one machine.",
    "rdzv-endpoint": "No effect.",
    "rdzv-conf": "No effect.",
    "monitor-interval": "No effect: the end of a process is noticed at once.",
    "max-restarts": "No effect: the worker is started again as a whole.",
}

_INTRODUCTION = """\
# model-config.yaml

This page is generated from the table of keys in the code, by `python -m docs.model_config >
docs/model-config.md`.

This file describes how a model should be served. Pack it into the model's archive with
`modelserver-archive --config-file model-config.yaml`. The server reads the keys in the first tables. The
handler gets the whole document, unchanged, as `context.model_yaml_config`.

```yaml
batchSize: 8
maxBatchDelay: 50
minWorkers: 1
maxWorkers: 4
handler:
  topk: 3
```

The file is YAML with plain values: tags that create Python objects (`!!python/…`) are refused. As in
TorchServe, a value of the wrong type is ignored, with a warning that names the archive, the key, the value
and the allowed values. For keys marked **strict**, the archive is refused with this message instead. You can
add your own keys; a key that is very similar to a known one causes a warning that names the known key.

If an option is set in several places, the first of these wins: the parameter of the registration,
`model-config.yaml`, `models=` in config.properties for this model and version, the key of
config.properties, the default. The tables show which sources rank above and below a key. Keys that only
modelserver has are marked *own*. `GET /models/{model}` shows values with their sources under `batching`.

## Keys of the server
"""

_HEAD = "\n| key | values | default | ranks above | ranks below | meaning |\n|---|---|---|---|---|---|\n"

_FURTHER = f"""
## Several GPUs, several processes

With `deviceIds: [2, 3]` the first worker gets GPU 2, the second GPU 3, and the third GPU 2 again. Without
`deviceIds`, the workers of all models are distributed over all GPUs in turn. With `deviceType: cpu` workers
get no GPU. [On a GPU](gpu.md#which-gpu-a-worker-gets) describes what happens if a GPU cannot be used.

With a `parallelType`, one worker spans several devices:

```yaml
parallelType: tp             # tp, pp, pptp or custom
torchrun:
  nproc-per-node: 4          # processes of one worker
```

| `parallelType` | processes of one worker | processes that get a batch |
|---|---|---|
| `tp`, `pptp`, and `custom` with `torchrun` | `nproc-per-node`, or `parallelLevel` | all |
| `pp` | `nproc-per-node`, or `parallelLevel` | rank 0 |
| `custom` without `torchrun` | one, which sees `parallelLevel` GPUs as 0, 1, … | the only one |
| not set | one; `torchrun` and `parallelLevel` have no effect, as in TorchServe | the only one |

Each process has the environment variables of `torchrun`: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`,
`LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and the others, so `torch.distributed.init_process_group()`
needs no arguments. All processes of a worker see its GPUs as 0, 1, … (`CUDA_VISIBLE_DEVICES`); the context's
`gpu_id` is the rank's GPU. Without GPUs, processes compute on the CPU, for example with `gloo`. Each worker
has a group of consecutive GPUs, and there are at most as many workers as groups.

```python
class Handler:
    def initialize(self, context):
        torch.distributed.init_process_group("gloo")

    def handle(self, data, context):
        values = torch.tensor([float(bytes(row["body"])) for row in data])
        torch.distributed.all_reduce(values)
        return values.tolist()
```

- The values that rank 0 returns are the results; those of other ranks are ignored. The log has the output of
  each rank with its number.
- The worker is ready when every process has loaded, within `startupTimeout`. If one process ends, the worker
  ends: all processes are stopped and started again.
- A failed batch is not retried in parts, and the next batch is not prepared ahead, as the processes would
  diverge. If one rank fails while rank 0 waits for it, the worker is replaced after
  {FAILED_GRACE:g} seconds.
- `continuousBatching` and `asyncCommunication` cannot be combined with several processes. Cancelled
  requests are still computed.
- A worker has at most {MAX_PROCESSES} processes, on one machine or on
  [several](cluster.md#workers-of-several-processes). Descriptions of a worker show the process and memory of
  rank 0.
- `MASTER_PORT` is the next free port of the thousand that begin with `initial_distribution_port`. torch
  listens there on all interfaces: keep it behind a firewall, as with any torch.distributed program.
- Unlike in TorchServe, there is no process `torchrun` and no log folder `torchelastic_ts`. Each process gets
  its share of the cores instead of one thread, unless `OMP_NUMBER_THREADS` is set.

| key of `torchrun` | |
|---|---|
{{torchrun}}
## Packages per model

An archive can include a requirements file (`modelserver-archive --requirements-file requirements.txt`). The
server installs the requirements only if the operator allows it with `install_py_dep_per_model=true` in
config.properties; otherwise it logs a warning.

- Without `useVenv`, pip installs into a folder that is on the Python path of this model's workers, directly
  after the archive's own modules. pip ignores the server's packages, so a requirement that depends on
  torch installs another torch.
- With `useVenv: true` the model gets a virtual environment that also has the server's packages, and pip
  installs only missing ones. As in TorchServe, the environment is created even if there are no requirements
  or `install_py_dep_per_model` is not set.

Requirements name files in the archive by path: `./tiny-1.0-py3-none-any.whl`, or `--find-links .` with
`--no-index`. pip runs in the archive's folder with the server's environment variables, except those that
`blacklist_env_vars` hides, so `PIP_INDEX_URL` and `pip.conf` apply. pip checks requirements that have
`--hash`. Its output is in `model_log.log`, line by line, as `<model>_<version>-pip`. If pip fails, or takes
more than {INSTALL_LIMIT / 60:.0f} minutes, the registration fails with pip's last lines, and the installed
files are removed.

Environments are stored in the folder `environments` of the cache folder (`$MODELSERVER_CACHE`, else
`$XDG_CACHE_HOME/modelserver`, else `~/.cache/modelserver`). The name of an environment is a hash of the
requirements, the local files that they name, and the Python. TorchServe reinstalls requirements at each
registration; modelserver reuses environments for later registrations and in other servers. So requirements
without a version stay at the version that was installed first; to update them, remove the folder. With
`MODELSERVER_CACHE=off` environments are removed when the server stops.

The size of the folder is limited. If all environments exceed {SharedCache.LIMIT >> 30} GiB after an
installation, environments that no registered model of any server uses are removed, the least recently used
first. The remains of interrupted installations are removed too.
"""


def ranks_above(option: Option) -> tuple[str, ...]:
    """The sources of an option that rank above the file, as users know them."""
    words: tuple[str, ...] = ()
    if option.kserve:
        first, *others = option.kserve.split("_")
        words = (option.kserve, "batcher." + first + "".join(map(str.capitalize, others)))
    return tuple(f"`{word}`" for word in ((option.name, *words) if option.requested else words))


def ranks_below(option: Option) -> tuple[str, ...]:
    """The sources that rank below the file."""
    setting = f"`{option.setting}`" + (" of config.properties" if option.own else "")
    return (
        *(f"`{name}`" for name in option.below),
        *((MODELS,) if option.name in ModelDefaults.__slots__ else ()),
        *((setting,) if option.setting else ()),
    )


def reference() -> str:
    """The text of the page."""
    tables = (option for option in CONFIG_KEYS.values() if option.group != FURTHER)
    sections = (
        f"\n### {title}\n{_HEAD}" + "".join(map(_row, options))
        for title, options in groupby(tables, key=lambda option: _TITLES[option.group])
    )
    further = {key: _meaning(option) for key, option in CONFIG_KEYS.items() if option.group == FURTHER}
    special = _pairs("key of the server", further)
    handlers = _pairs("key of handlers", _HANDLER_KEYS)
    torchrun = "".join(f"| `{name}` | {table_cell(meaning)} |\n" for name, meaning in _TORCHRUN_KEYS.items())
    return (
        _INTRODUCTION
        + "".join(sections)
        + f"\n### {_TITLES[FURTHER]}\n{special}"
        + f"\n## Keys of handlers\n\nThe server passes these keys to the handler.\n{handlers}"
        + _FURTHER.replace("{torchrun}", torchrun)
    )


def _row(option: Option) -> str:
    default = default_of(option)
    cells = (
        f"`{option.key}`",
        table_cell(option.values.allowed) + " **strict**" * option.is_strict,
        f"`{default}`" if default and " " not in default else default,
        ", ".join(ranks_above(option)),
        ", ".join(ranks_below(option)),
        table_cell(_summary(option)),
    )
    return f"| {' | '.join(cells)} |\n"


def default_of(option: Option) -> str:
    """The value that applies when nothing is set, in the file's notation."""
    if option.default is not None:
        return option.default
    value = getattr(ModelOptions(), option.name, None)
    return str(value).lower() if isinstance(value, int) else ""


def _summary(option: Option) -> str:
    return option.summary + " *(own)*" if option.own else option.summary


def _meaning(option: Option) -> str:
    """The text for an option whose values have their own syntax."""
    ranks = f" Above it: {', '.join(ranks_above(option))}; below: {', '.join(ranks_below(option))}."
    return f"{option.values.allowed}: {_summary(option)} Invalid values are refused.{ranks * option.own}"


def _pairs(title: str, meanings: dict[str, str]) -> str:
    rows = "".join(f"| `{name}` | {table_cell(meaning)} |\n" for name, meaning in meanings.items())
    return f"\n| {title} | meaning |\n|---|---|\n{rows}"


if __name__ == "__main__":
    sys.stdout.write(reference())
