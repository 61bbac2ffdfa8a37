"""How gRPC opens, and ends if it has not."""

from __future__ import annotations

from typing import Any

from modelserver.ext.grpc.extension import GrpcListener


async def test_listener_that_never_opened_can_be_closed() -> None:
    """The start may fail before gRPC's turn; a renewed certificate may come before it, too."""
    nothing: Any = None
    listener = GrpcListener(nothing, nothing, [])
    listener.certify(nothing)
    await listener.refuse()
    await listener.close(1.0)

    assert listener._servers is None
