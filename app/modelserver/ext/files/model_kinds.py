"""What a model file is, by its content: nothing of it is loaded, and a pickle is read without running it.

Those that cannot be served as they are have lines of code that help.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import pickletools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

# Bytes that are read of a file, or of what is packed in it.
_READ: Final = 4 << 20
# Objects that torch wrote one after the other before its files were archives.
_OBJECTS: Final = 6
_TEXTS: Final = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_NAME: Final = re.compile(r"\w+(\.\w+)*\.(weight|bias)")
# What pickles of arrays and tensors refer to, whatever they hold.
_PLAIN: Final = re.compile(
    r"(collections|copyreg|builtins|_codecs|numpy|joblib|torch\._utils|torch\._tensor|torch\.storage)\..*"
    r"|torch\.[^.]*|numpy\.core\..*"
)


class ModelKind(Enum):
    """``UNKNOWN`` is what only its suffix tells."""

    UNKNOWN = ""
    TORCHSCRIPT = ".pt"
    EXPORTED = ".pt2"
    SKOPS = ".skops"
    PICKLE = ".joblib"
    XGBOOST_JSON = ".json"
    XGBOOST_UBJSON = ".ubj"
    MODULE = "a pickled network"
    WEIGHTS = "weights"
    SAFETENSORS = "weights in safetensors"
    GGUF = "weights of llama.cpp"


@dataclass(frozen=True, slots=True)
class Seen:
    """``of`` is the class of a pickled object, or a few names of weights."""

    kind: ModelKind
    of: str = ""


def look(path: Path) -> Seen:
    """What the file is. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        start = file.read(_READ)
    if start[:4] == b"GGUF":
        return Seen(ModelKind.GGUF)
    if start[:4] == b"PK\3\4":
        return _in_archive(path)
    if (header := _safetensors(start)) is not None:
        return Seen(ModelKind.SAFETENSORS, _few(header))
    if start[:1] == b"{" and b'"learner"' in start:
        return Seen(ModelKind.XGBOOST_JSON)
    if start[:2] == b"{L" and b"learner" in start:
        return Seen(ModelKind.XGBOOST_UBJSON)
    for magic, unpack in _PACKED.items():
        if start.startswith(magic):
            try:
                start = unpack(start)
            except (zlib.error, OSError, lzma.LZMAError):
                return Seen(ModelKind.UNKNOWN)
    return _in_pickle(start) if start[:1] == b"\x80" else Seen(ModelKind.UNKNOWN)


# As joblib packs pickles; by the first bytes, from the first bytes.
_PACKED: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"\x78": lambda data: zlib.decompressobj().decompress(data, _READ),
    b"\x1f\x8b": lambda data: zlib.decompressobj(31).decompress(data, _READ),
    b"BZh": lambda data: bz2.BZ2Decompressor().decompress(data, _READ),
    b"\xfd7zXZ": lambda data: lzma.LZMADecompressor().decompress(data, _READ),
}


def _in_archive(path: Path) -> Seen:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            inside = {*names, *archive.namelist()}
            if "schema.json" in inside:
                return Seen(ModelKind.SKOPS)
            if "constants.pkl" in inside and "data.pkl" in inside:
                return Seen(ModelKind.TORCHSCRIPT)
            if not inside.isdisjoint(("archive_format", "serialized_exported_program.json")):
                return Seen(ModelKind.EXPORTED)
            if "data.pkl" in names:
                with archive.open(names["data.pkl"]) as pickled:
                    return _in_pickle(pickled.read(_READ))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error):
        pass
    return Seen(ModelKind.UNKNOWN)


def _in_pickle(content: bytes) -> Seen:
    parts = list(_read_pickle(io.BytesIO(content)))
    references = [name for name, is_reference in parts if is_reference]
    made = [name for name in references if not _PLAIN.fullmatch(name)]
    if not any(name.startswith("torch.") for name in references):
        return Seen(ModelKind.PICKLE, made[0] if made else "")
    if made:
        return Seen(ModelKind.MODULE, made[0])
    return Seen(ModelKind.WEIGHTS, _few(text for text, _ in parts if _NAME.fullmatch(text)))


def _read_pickle(stream: io.BytesIO) -> Iterator[tuple[str, bool]]:
    """The texts in pickles, and the classes and functions that they refer to (True), until they end."""
    for _ in range(_OBJECTS):
        # Later references are made of earlier texts, which the pickle numbers.
        memo: dict[int, str | None] = {}
        texts: list[str] = []
        last: str | None = None
        try:
            for code, value, _position in pickletools.genops(stream):
                argument: Any = value
                if code.name == "MEMOIZE" or "PUT" in code.name:
                    memo[len(memo) if argument is None else int(argument)] = last
                    continue
                last = None
                if code.name in ("GLOBAL", "INST"):
                    yield argument.replace(" ", "."), True
                elif code.name == "STACK_GLOBAL":
                    yield ".".join(texts[-2:]), True
                elif code.name in _TEXTS:
                    last = argument
                    yield argument, False
                elif "GET" in code.name:
                    last = memo.get(int(argument))
                if last is not None:
                    texts.append(last)
        except (ValueError, OverflowError):
            return


def _safetensors(start: bytes) -> list[str] | None:
    """The names of the tensors; None if it is another format."""
    size = int.from_bytes(start[:8], "little")
    if start[8:9] != b"{" or size > len(start) - 8:
        return None
    try:
        header = json.loads(start[8 : 8 + size])
    except ValueError:
        return None
    return [name for name in header if name != "__metadata__"]


def _few(names: Iterable[str]) -> str:
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:2]) + (", …" if len(listed) > 2 else "")


_EXPORT: Final = """\
{file} is {a}: loading it runs code and needs its class. Export it where it was made, with a batch of rows:

import torch
network = torch.load({file!r}, weights_only=False).eval()
program = torch.export.export(network, (rows,), dynamic_shapes=({{0: torch.export.Dim("rows")}},))
torch.export.save(program, {exported!r})

Then: modelserver serve {exported}"""
_WITH_A_HANDLER: Final = """\
{file} has {what}. A script beside it loads them:

{code}

Then: modelserver serve handler.py"""
_NETWORK: Final = """\
import modelserver, torch
from network import Network  # the class of the network
{imports}
class Served(modelserver.Handler):
    def load(self, context):
        self.network = Network().eval()
        self.network.load_state_dict({load})

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.network(rows)"""
_LLAMA: Final = """\
import llama_cpp, modelserver  # pip install llama-cpp-python

class Served(modelserver.Handler):
    def load(self, context):
        self.llama = llama_cpp.Llama({file!r})

    def predict(self, rows: list[str]) -> list[str]:
        return [self.llama(row)["choices"][0]["text"] for row in rows]"""
_PICKLED: Final = """\
{file} is a pickle{a}, which can run any code when it is loaded. If you know who made it:

modelserver serve {file} --trust

(for registrations: trust_pickles=true in config.properties). A file that runs no code is written by
skops.io.dump(model, {skops!r})"""


def advice(path: Path, seen: Seen) -> str:
    """What to do with a file that is not served as it is; empty for one that is."""
    name, of = path.name, f" ({seen.of})" if seen.of else ""
    match seen.kind:
        case ModelKind.MODULE:
            return _EXPORT.format(file=name, a=f"{seen.kind.value}{of}", exported=f"{path.stem}.pt2")
        case ModelKind.PICKLE:
            return _PICKLED.format(file=name, a=of, skops=f"{path.stem}.skops")
        case ModelKind.WEIGHTS:
            code = _NETWORK.format(imports="", load=f"torch.load({name!r}, weights_only=True)")
        case ModelKind.SAFETENSORS:
            code = _NETWORK.format(
                imports="from safetensors.torch import load_file  # pip install safetensors\n",
                load=f"load_file({name!r})",
            )
        case ModelKind.GGUF:
            return _WITH_A_HANDLER.format(file=name, what=seen.kind.value, code=_LLAMA.format(file=name))
        case _:
            return ""
    return _WITH_A_HANDLER.format(file=name, what=f"{seen.kind.value} without their network{of}", code=code)
