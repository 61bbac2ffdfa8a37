"""Header blocks to fields (RFC 7541)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.hpack import Decoder

from modelserver.ext.grpc.http2.errors import Broken
from modelserver.ext.grpc.http2.frames import Code

if TYPE_CHECKING:
    from collections.abc import Callable

Fields: TypeAlias = "list[tuple[bytes, bytes]]"

# Blocks that are remembered, and the bytes of fields that one of them may have.
_MOST_KNOWN = 64
_LARGEST_KNOWN = 4096
# The first bits of a block that changes the size of the table.
_RESIZES, _RESIZE = 0xE0, 0x20


class FieldDecoder:
    """The decoder of a connection.

    Clients repeat blocks, as those refer to fields in the table: what ``read`` made of a block's fields is
    remembered until the table changes.
    """

    def __init__(self, limit: int, read: Callable[[Fields], Any]) -> None:
        self._decoder = Decoder(limit)
        self._read = read
        self._known: dict[bytes, Any] = {}

    def decode(self, block: bytes) -> Any:
        """What was read of the fields of a whole block. Raises Broken."""
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table.dynamic_entries
        size, newest = len(table), table[0] if table else None
        try:
            fields: Fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise Broken(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except HPACKError as error:
            raise Broken(Code.COMPRESSION_ERROR, str(error)) from error
        found = self._read(fields)
        if len(table) != size or (table and table[0] is not newest):
            self._known.clear()
        elif block and block[0] & _RESIZES != _RESIZE:
            self._remember(block, found, sum(len(name) + len(value) for name, value in fields))
        return found

    def _remember(self, block: bytes, found: Any, size: int) -> None:
        if size + len(block) <= _LARGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = found
