"""Models of the Hugging Face hub, in its own cache; only in the process that fetches.

Whoever uses the hub has the cache (``HF_HOME``), and may be logged in: models that are there are not fetched
again, and none is copied.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from modelserver.errors import DownloadFailed, InternalError, ModelNotFound, ModelServerError
from modelserver.ext.stores.hub_model import HubOptions, check_weights, not_a_model

if TYPE_CHECKING:
    from modelserver.ext.stores.address import StoreAddress

Progress = Callable[[int, int], None]
_FILES: Final = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.safetensors", "README.md")
# Other forms of the same weights.
_LEFT_OUT: Final = ("onnx/*", "openvino/*", "original/*", "coreml/*", "consolidated*")
_LOGIN: Final = "log in with `hf auth login`, or set HF_TOKEN"


def snapshot(address: StoreAddress, url: str, max_bytes: int, progress: Progress) -> Path | None:
    """The folder of a model in the cache; None if the repository is an archive. ``url`` has the options.

    Raises ``ModelNotFound``, ``InvalidModel``, ``DownloadFailed``, ``InternalError``.
    """
    try:
        import huggingface_hub as hub  # noqa: PLC0415 - in this process only
    except ImportError as error:
        raise InternalError(
            "hf:// needs huggingface_hub, which is not installed: pip install 'modelserver[transformers]'"
        ) from error
    repository, _, revision = address.bucket.partition("@")
    trusts_code = HubOptions.split(url)[1].trusts_code
    patterns = [*_FILES, *(["*.py"] if trusts_code else [])]
    try:
        files = _files_of(hub, repository, revision)
        if files is not None:
            if "config.json" not in files and any(name.endswith((".py", "MANIFEST.json")) for name in files):
                return None
            patterns += _check(files, url, max_bytes, trusts_code=trusts_code)
        return Path(
            hub.snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=patterns,
                ignore_patterns=list(_LEFT_OUT),
                tqdm_class=_bar(hub, progress, sum((files or {}).values())),
            )
        )
    except ModelServerError:
        raise
    except Exception as error:
        raise _explained(hub, error, url, repository, revision) from error


def _files_of(hub: Any, repository: str, revision: str) -> dict[str, int] | None:
    """The names and sizes of the files, None if the hub cannot be reached."""
    try:
        info = hub.HfApi().model_info(repository, revision=revision or None, files_metadata=True)
    except hub.errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        return None
    except OSError:
        # It may be in the cache.
        return None
    except Exception as error:
        if type(error).__module__.partition(".")[0].startswith("httpx"):
            return None
        raise
    return {each.rfilename: each.size or 0 for each in info.siblings or ()}


def _check(files: dict[str, int], url: str, max_bytes: int, *, trusts_code: bool) -> list[str]:
    """Raises an error for what cannot be served, before it is fetched; returns further patterns."""
    if "config.json" not in files:
        raise not_a_model(url, has_adapter="adapter_config.json" in files)
    check_weights(files, url, HubOptions(trusts_code=trusts_code))
    has_safe = any(name.endswith(".safetensors") for name in files)
    size = sum(size for name, size in files.items() if name.endswith(".safetensors" if has_safe else ".bin"))
    if size > max_bytes:
        raise DownloadFailed(f"it is larger than {max_bytes} bytes")
    return [] if has_safe else ["*.bin"]


def _bar(hub: Any, progress: Progress, total: int) -> type[Any]:
    """Reports what arrives, in the place of a bar on the terminal."""
    lock = threading.Lock()
    received = 0

    class Bar(hub.utils.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **arguments: Any) -> None:
            self._ms_counts = str(arguments.get("name")).endswith("snapshot_download")
            super().__init__(*args, **{**arguments, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal received
            if self._ms_counts:
                with lock:
                    received += int(n or 0)
                    progress(received, max(total, received))

    return Bar


def _explained(hub: Any, error: Exception, url: str, repository: str, revision: str) -> ModelServerError:
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        place = f"{hub.constants.ENDPOINT}/{repository}"
        return DownloadFailed(f"it is gated: accept its conditions at {place}, and {_LOGIN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"Model not found at: {url}: it has no revision {revision or 'main'}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"Model not found at: {url}: the hub has no such model, or it is private: {_LOGIN}"
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        why = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        return DownloadFailed(f"{why}, and the model is not complete in the cache")
    if isinstance(error, OSError) and error.errno is not None:
        free = shutil.disk_usage(Path(hub.constants.HF_HUB_CACHE).anchor).free
        return InternalError(f"{error.strerror}; {free} bytes are free")
    return DownloadFailed(f"the hub could not be read: {type(error).__name__}")
