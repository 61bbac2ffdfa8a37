"""A context for tests of handlers without a server (reference 13)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from modelserver_handlers.compat.utilities import get_yaml_config
from modelserver_handlers.metrics.metric import MetricsStore


class MockContext:
    """What a handler's ``initialize`` and ``handle`` need of a context, for one model folder.

    ``explain`` may be set to the value of the request's header of that name. ``gpu_id`` is ignored without
    a GPU.
    """

    def __init__(  # noqa: PLR0917 - TorchServe's signature
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: int | str | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        self.manifest: dict[str, Any] = {"model": {}}
        if model_pt_file:
            self.manifest["model"]["serializedFile"] = model_pt_file
        if model_file:
            self.manifest["model"]["modelFile"] = model_file
        self.model_name = model_name
        self.system_properties: dict[str, Any] = {"model_dir": str(model_dir)}
        if gpu_id is not None and _has_gpu():
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.metrics = MetricsStore({0: "1"}, model_name)
        self.model_yaml_config: dict[str, Any] = {}
        if model_yaml_config_file:
            self.model_yaml_config = get_yaml_config(Path(model_dir) / model_yaml_config_file)

    def get_request_header(self, idx: int, exp: str) -> Any:
        """``explain`` for that header of request 0, False for all others."""
        return self.explain if idx == 0 and exp == "explain" else False


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415 - not every handler needs it

    return torch.cuda.is_available()


def copy_files(src_dir: str | Path, dst_dir: str | Path, files: Mapping[str, str]) -> None:
    """Copy files (name to new name) from one folder to another, which is created if needed."""
    Path(dst_dir).mkdir(parents=True, exist_ok=True)
    for name, new_name in files.items():
        shutil.copy(Path(src_dir) / name, Path(dst_dir) / new_name)


def download_model(model_url: str, model_dir: str | Path) -> None:
    """Download an http(s) URL to ``model.pt`` in ``model_dir``, unless that exists.

    Raises ValueError for other URLs.
    """
    address = urlsplit(model_url)
    if address.scheme not in {"http", "https"}:
        raise ValueError(f"only http and https are supported, not {model_url!r}")
    target = Path(model_dir) / "model.pt"
    if not target.exists():
        with urlopen(model_url) as source, target.open("wb") as file:  # noqa: S310 - checked above
            shutil.copyfileobj(source, file)
