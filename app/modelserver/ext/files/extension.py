"""Handlers' scripts, model files and networks of torchvision, which are served without an archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modelserver.errors import InternalError
from modelserver.extension import Host
from modelserver.models.archives.single_file import SingleFile


async def extend(host: Host) -> None:
    """Always on: any registration may name one. What it needs is imported for the first."""
    host.lay_out, host.network = lay_out, make_network


def lay_out(single: SingleFile, url: str, folder: str) -> None:
    """See :data:`modelserver.models.archives.single_file.LayOut`; also runs in helpers."""
    from modelserver.ext.files.layout import lay_out_file  # noqa: PLC0415 - see above

    target = Path(folder)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lay_out_file(single, target)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error


def make_network(url: str, find_weights: Callable[[str], Path], workdir: Path) -> Path:
    """See :data:`modelserver.models.archives.single_file.MakeNetwork`."""
    from modelserver.ext.files.networks import TorchvisionSource  # noqa: PLC0415 - see above

    return TorchvisionSource.parse(url).write(workdir, find_weights)
