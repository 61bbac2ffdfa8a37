"""What is served without an archive: a handler's script, a model file, or a network of torchvision.

An extension makes an archive's folder of it, from which all else goes on as usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

_SCRIPT: Final = re.compile(r"(?P<path>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?(?:\?model_file=(?P<file>.+))?")
# Suffix to that of the format, as far as the name tells it.
_FORMATS: Final = {
    **dict.fromkeys((".pt", ".pth", ".ts", ".torchscript"), ".pt"),
    **dict.fromkeys((".joblib", ".pkl", ".pickle"), ".joblib"),
    **{suffix: suffix for suffix in (".pt2", ".onnx", ".skops", ".json", ".ubj", ".safetensors", ".gguf")},
}


@dataclass(frozen=True, slots=True)
class SingleFile:
    """What a URL such as ``handler.py:Sentiment?model_file=weights.pt`` names.

    ``path`` and ``model_file`` are as written until they are located; ``name`` is that of a class or function
    in a script, and empty for the only one. ``trusts_pickles``: a model file may be a pickle, whose loading
    can run any code.
    """

    path: str
    name: str = ""
    model_file: str = ""
    trusts_pickles: bool = False

    @classmethod
    def parse(cls, url: str) -> SingleFile | None:
        """None for a URL that names something else."""
        if match := _SCRIPT.fullmatch(url):
            return cls(match["path"], match["name"] or "", match["file"] or "")
        return cls(url) if Path(url).suffix.lower() in _FORMATS else None

    @property
    def suffix(self) -> str:
        """The suffix of a model file's format, as its name says; empty for a script."""
        return _FORMATS.get(Path(self.path).suffix.lower(), "")


# Makes an archive's folder of a file, whose paths are absolute; the texts are its URL, for errors, and the
# folder. Raises InvalidModel, and InternalError if the folder cannot be stored. Helpers call it, too.
LayOut: TypeAlias = Callable[[SingleFile, str, str], None]

# Makes a folder for a ``torchvision://`` URL below the last path, and returns it. The function finds a file
# of weights in the model store. Raises BadRequest, OSError, and ModelNotFound for weights that are not there.
MakeNetwork: TypeAlias = Callable[[str, Callable[[str], Path], Path], Path]
