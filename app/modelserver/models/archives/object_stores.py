"""What fetches archives from object stores, if the server has something that does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.models.archives.incoming import Transfer
    from modelserver.models.environments.environment_store import Use


class ObjectStores(Protocol):
    """Fetches to the cache of the machine, where an archive stays until its use ends.

    All raise ``ModelNotFound``, ``DownloadFailed``, ``InternalError``, and ``BadRequest`` for a URL that is
    not of the plain form.
    """

    async def fetch(
        self, url: str, source: str, workdir: Path, transfer: Transfer
    ) -> tuple[Path, Use | None]:
        """The archive at ``source``, the URL of an object or folder; errors name it by ``url``.

        It may be the folder of a model in the cache of the Hugging Face hub, which is not held. ``workdir``
        has the cache where the user has none.
        """
        ...

    async def fetch_signed(self, url: str, workdir: Path, transfer: Transfer) -> tuple[Path, Use | None, str]:
        """The archive at an http(s) URL of S3, with a signed request; also its name there."""
        ...

    def without_options(self, url: str) -> str:
        """The URL without the options of :meth:`lay_out`."""
        ...

    def lay_out(self, folder: Path, url: str, workdir: Path) -> Path | None:
        """The archive's folder, made for a model of the Hugging Face hub; None for what is none.

        Raises ``InvalidModel``, ``OSError``.
        """
        ...

    async def names(self, url: str) -> list[str]:
        """What is in the folder at a URL, as of a few seconds ago; folders end in a slash."""
        ...
