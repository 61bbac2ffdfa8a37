"""Archives in object stores, on the Hugging Face hub, and at http(s) URLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.extension import Host
from modelserver.models.archives.incoming import Transfer

if TYPE_CHECKING:
    from modelserver.ext.stores.client import Listing
    from modelserver.models.environments.shared_cache import Use


SCHEMES = ("s3", "gs", "az", "hf")


async def extend(host: Host) -> None:
    """Always on: any registration may name a URL. What it needs is imported for the first one."""
    stores, store = Stores(), host.registry.builder.store
    for scheme in SCHEMES:
        host.fetch(scheme, stores)
    store.download, store.hub = download, stores


async def download(url: str, store: Path, workdir: Path, transfer: Transfer) -> Path:
    """See :data:`modelserver.models.archives.store.Download`."""
    if transfer.signed:
        from modelserver.ext.stores import client  # noqa: PLC0415 - see above

        return await client.download_signed(url, store, workdir, transfer)
    from modelserver.ext.stores import fetching  # noqa: PLC0415 - see above

    return await fetching.download(url, store, transfer)


class Stores:
    """See :class:`modelserver.models.archives.store.ObjectStores`, and ``HubModels`` there."""

    def __init__(self) -> None:
        self._listings: dict[str, Listing] = {}

    @classmethod
    def by_scheme(cls) -> dict[str, Stores]:
        """All that there are."""
        return dict.fromkeys(SCHEMES, cls())

    async def fetch(
        self, url: str, source: str, workdir: Path, transfer: Transfer
    ) -> tuple[Path, Use | None]:
        from modelserver.ext.stores.address import parse_address  # noqa: PLC0415
        from modelserver.ext.stores.client import fetch  # noqa: PLC0415 - see above

        return await fetch(url, parse_address(self.without_options(source)), workdir, transfer)

    def without_options(self, url: str) -> str:
        from modelserver.ext.stores.hub_model import HubOptions  # noqa: PLC0415 - see above

        return HubOptions.split(url)[0]

    def lay_out(self, folder: Path, url: str, workdir: Path) -> Path | None:
        from modelserver.ext.stores.hub_model import archive_of  # noqa: PLC0415 - see above

        return archive_of(folder, url, workdir)

    async def names(self, url: str) -> list[str]:
        from modelserver.ext.stores.client import Listing  # noqa: PLC0415 - see above

        return await self._listings.setdefault(url, Listing(url)).names()
