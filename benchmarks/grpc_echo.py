"""The least that a Python gRPC server can do for a call: take its bytes, answer a few.

Started as a program with the port to listen at; it takes calls of any method.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

ANSWER = b'{\n  "ok": 1\n}'


async def _answer(_: bytes, __: Any) -> bytes:
    return ANSWER


class AnyMethod(grpc.GenericRpcHandler):
    """All methods are the same one."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        """As grpc asks for it."""
        return grpc.unary_unary_rpc_method_handler(_answer)


async def serve(port: int) -> None:
    """Until the process ends."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((AnyMethod(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
