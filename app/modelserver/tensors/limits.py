"""How much one request may bring: what is small as a body can be large as work."""

from __future__ import annotations

import msgspec

from modelserver.errors import BadRequest, PayloadTooLarge

# Of one request: the bytes of headers and parameters that are repeated for each of its instances.
MAX_REPEATED = 64 << 20


class RequestLimits(msgspec.Struct, frozen=True):
    """The settings ``max_request_instances`` and ``max_request_tensors``.

    ``tensors`` bounds the inputs of a V2 request, its outputs, and the parameters of all of them together.
    """

    instances: int = 10_000
    tensors: int = 4096

    def check_instances(self, instances: int, repeated: int) -> None:
        """``repeated`` bytes travel with each instance. Raises PayloadTooLarge, which names the limit."""
        if instances > self.instances:
            raise PayloadTooLarge(
                f"The request has {instances} instances, max_request_instances={self.instances} are allowed."
            )
        if instances * repeated > MAX_REPEATED:
            raise PayloadTooLarge(
                f"The {repeated} bytes of headers and parameters are needed for each of {instances} "
                f"instances, which makes more than the {MAX_REPEATED} bytes that are allowed; send fewer "
                "instances at once."
            )

    def check_tensors(self, what: str, number: int) -> None:
        """``what`` there are so many of. Raises BadRequest, which names the limit."""
        if number > self.tensors:
            raise BadRequest(f"{what}: there are {number}, max_request_tensors={self.tensors} are allowed")

    def may_exceed(self, text: int) -> bool:
        """Whether so many bytes of JSON can hold more tensors or parameters than are allowed."""
        return text > 4 * self.tensors
