"""How many instances one request may bring: what is small as a body can be large as work."""

from __future__ import annotations

from modelserver.errors import PayloadTooLarge

# Of one request: its instances, and the bytes of headers and parameters repeated for each of them.
MAX_INSTANCES = 10_000
MAX_REPEATED = 64 << 20


def check_size(instances: int, repeated: int) -> None:
    """Refuses what is small as a body and large as work; ``repeated`` bytes travel with each instance.

    Raises:
        PayloadTooLarge: names the limit.
    """
    if instances > MAX_INSTANCES:
        raise PayloadTooLarge(f"The request has {instances} instances, {MAX_INSTANCES} are allowed.")
    if instances * repeated > MAX_REPEATED:
        raise PayloadTooLarge(
            f"The {repeated} bytes of headers and parameters are needed for each of {instances} instances, "
            f"which makes more than the {MAX_REPEATED} bytes that are allowed; send fewer instances at once."
        )
