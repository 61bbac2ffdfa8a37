"""Handlers' scripts and model files, which are served without an archive."""

from __future__ import annotations

from pathlib import Path

from modelserver.errors import InternalError
from modelserver.extension import Host
from modelserver.models.archives.single_file import SingleFile


class Extension:
    """Always on: any registration may name such a file. What it needs is imported for the first one."""

    async def open(self, host: Host) -> None:
        host.lay_out = lay_out

    async def close(self, grace: float) -> None:
        """Nothing is open."""


def lay_out(single: SingleFile, url: str, folder: str) -> None:
    """See :data:`modelserver.models.archives.single_file.LayOut`; also runs in helpers."""
    from modelserver.ext.files.layout import lay_out_file  # noqa: PLC0415 - see above

    target = Path(folder)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lay_out_file(single, target)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error
