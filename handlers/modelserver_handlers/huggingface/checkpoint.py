"""A model of the Hugging Face hub on this machine: its weights, configuration and tokenizer."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from modelserver.engine.resources import available_memory
from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.handler_options import handler_settings
from modelserver_handlers.networks.device import choose_device, keep_memory
from modelserver_handlers.networks.int8 import has

_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
# Of tokenizers that know no limit.
_NO_LIMIT: Final = 1_000_000
# Of a tokenizer without its files there are up to two beside the special ones.
_LEAST_WORDS: Final = 3
_SAFE: Final = "*.safetensors"


def import_transformers() -> Any:
    """The library. Raises ModelLoadError without it."""
    # Threads of the tokenizers hold up those of a batch, and a warning comes with each fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        library = import_module("transformers")
    except ModuleNotFoundError as error:
        raise ModelLoadError(
            f"{error.name} is not installed: pip install 'modelserver[transformers]'"
        ) from None
    library.utils.logging.disable_progress_bar()
    return library


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What ``handler:`` of model-config.yaml says about a model.

    ``path`` is a folder, or a name that transformers looks up in the hub's cache. ``trusts_code``: code that
    the model brings may run, and its weights may be pickles.
    """

    path: str
    device: torch.device
    settings: Mapping[str, Any]
    trusts_code: bool = False

    @classmethod
    def of(cls, context: Any) -> Checkpoint:
        """That of a handler's context. Raises ModelLoadError for an option that is wrong."""
        settings = handler_settings(getattr(context, "model_yaml_config", None) or {})
        name = settings.get("model_path")
        if not isinstance(name, str) or not name:
            raise ModelLoadError("handler: model_path must be a folder of the archive, or a name on the hub")
        if settings.get("dtype", "auto") not in _DTYPES:
            raise ModelLoadError(
                f"handler: dtype must be one of {', '.join(_DTYPES)}, got {settings['dtype']!r}"
            )
        properties = context.system_properties
        inside = Path(str(properties.get("model_dir"))) / name
        _, device = choose_device(properties.get("gpu_id"), getattr(context, "_ms_warn", None))
        if device.type == "cpu":
            keep_memory()
        path = str(inside) if inside.is_dir() else name
        return cls(path, device, settings, settings.get("trust_remote_code") is True)

    @property
    def arguments(self) -> dict[str, Any]:
        """For ``from_pretrained``."""
        is_here = os.path.isdir(self.path)
        return {"trust_remote_code": self.trusts_code, "local_files_only": is_here}

    @property
    def dtype(self) -> Any:
        """The type of the weights in memory: a processor without bfloat16 computes in float32."""
        name = self.settings.get("dtype", "auto")
        if name == "auto" and self.device.type == "cpu":
            is_quick = has("avx512_bf16") or has("amx_tile")
            name = "bfloat16" if is_quick and "bfloat16" in self._stored_types() else "float32"
        return name if name == "auto" else getattr(torch, name)

    def _stored_types(self) -> set[str]:
        """The type of the weights in the file, by either of its names."""
        stored = self.read_json("config.json")
        return {str(stored.get(name)) for name in ("dtype", "torch_dtype")}

    def read_json(self, name: str) -> Any:
        """A file of the folder; empty if there is none."""
        try:
            return json.loads((Path(self.path) / name).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{name} cannot be read: {first_line(error)}") from None

    @contextlib.contextmanager
    def loading(self) -> Iterator[dict[str, Any]]:
        """Checks the memory, gives the arguments for a model, and explains errors of transformers."""
        self._check_memory()
        try:
            yield {"dtype": self.dtype, "use_safetensors": None if self.trusts_code else True}
        except Exception as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error):
                raise
            version = import_transformers().__version__
            raise ModelLoadError(f"transformers {version} cannot load it: {first_line(error)}") from error

    def load(self, kind: str) -> Any:
        """The network, by a class of transformers such as ``AutoModel``, ready to compute."""
        library = import_transformers()
        with self.loading() as arguments:
            model = getattr(library, kind).from_pretrained(self.path, **arguments, **self.arguments)
        return model.to(self.device).eval().requires_grad_(False)

    def load_tokenizer(self) -> Any:
        """The tokenizer. Raises ModelLoadError, also if its files are missing."""
        library = import_transformers()
        try:
            tokenizer = library.AutoTokenizer.from_pretrained(self.path, **self.arguments)
        except Exception as error:
            raise ModelLoadError(f"its tokenizer cannot be loaded: {first_line(error)}") from error
        check_tokenizer(tokenizer)
        return tokenizer

    def _check_memory(self) -> None:
        """Raises ModelLoadError if the weights do not fit."""
        files = [path.stat() for path in Path(self.path).glob(_SAFE)] if os.path.isdir(self.path) else []
        needed = float(sum(each.st_size for each in files))
        if self.device.type == "cuda":
            free, where = float(torch.cuda.mem_get_info(self.device)[0]), str(self.device)
        else:
            free, where = available_memory(), "this machine"
            halves = {"bfloat16", "float16"} & self._stored_types()
            needed *= 2 if halves and self.dtype is torch.float32 else 1
        if needed > free:
            raise ModelLoadError(
                f"its weights need {needed / 1e9:.1f} GB of memory, and {where} has {free / 1e9:.1f} GB free"
            )


def check_tokenizer(tokenizer: Any) -> None:
    """Raises ModelLoadError for one without words: transformers makes it where the files are missing, and
    then all texts are the same to the model.
    """
    if len(tokenizer) - len(set(tokenizer.all_special_tokens)) < _LEAST_WORDS:
        raise ModelLoadError("its tokenizer has no words: its files, such as tokenizer.json, are missing")


def length_of(tokenizer: Any, config: Any) -> int | None:
    """The most tokens that a model takes, None if it does not say."""
    limit = getattr(tokenizer, "model_max_length", _NO_LIMIT)
    places = getattr(config, "max_position_embeddings", None)
    if limit < _NO_LIMIT:
        return int(limit)
    if not isinstance(places, int) or places < 1:
        return None
    # Models of RoBERTa's kind count places from behind the padding's.
    shift = getattr(config, "pad_token_id", None) or 0
    is_shifted = "roberta" in str(getattr(config, "model_type", ""))
    return places - shift - 1 if is_shifted else places
