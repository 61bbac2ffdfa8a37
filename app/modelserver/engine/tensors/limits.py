"""Limits per request beyond the body size, as a small body can cause much work."""

from __future__ import annotations

import msgspec

from modelserver.errors import BadRequest, PayloadTooLarge

# Bytes of headers and parameters of one request, which are repeated for each of its instances.
MAX_REPEATED = 64 << 20


class RequestLimits(msgspec.Struct, frozen=True):
    """The settings ``max_request_instances`` and ``max_request_tensors``.

    ``tensors`` limits the inputs of a V2 request, its outputs, and all their parameters together.
    """

    instances: int = 10_000
    tensors: int = 4096

    def check_instances(self, instances: int, repeated: int) -> None:
        """Raises PayloadTooLarge, naming the limit; ``repeated`` bytes are sent with each instance."""
        if instances > self.instances:
            raise PayloadTooLarge(
                f"The request has {instances} instances, max_request_instances={self.instances} are allowed."
            )
        if instances * repeated > MAX_REPEATED:
            raise PayloadTooLarge(
                f"{repeated} bytes of headers and parameters are sent with each of {instances} instances, "
                f"more than the {MAX_REPEATED} bytes allowed in total; send fewer instances at once."
            )

    def check_tensors(self, what: str, number: int) -> None:
        """Raises BadRequest, naming the limit, for too many of ``what``."""
        if number > self.tensors:
            raise BadRequest(f"{what}: there are {number}, max_request_tensors={self.tensors} are allowed")
