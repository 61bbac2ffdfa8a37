"""Collects the pictures of a batch: in the CPU's memory, or on their way to a GPU.

A GPU gets bytes, a quarter of the size of floats, from pinned memory and on a separate stream: the
next batch arrives while the current one is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from modelserver_handlers.errors import BadInput
from modelserver_handlers.pictures.classic import ClassicProcessing


def join(
    buffer: HostCropBuffer | DeviceCropBuffer,
    outcomes: Sequence[torch.Tensor | BadInput | None],
    device: torch.device | None,
) -> torch.Tensor:
    """One tensor of all rows but the bad ones, on the device; empty if all are bad.

    An outcome is None for a crop that has landed, otherwise the row's tensor or error.
    """
    placed = [place for place, outcome in enumerate(outcomes) if outcome is None]
    others = {place: each for place, each in enumerate(outcomes) if isinstance(each, torch.Tensor)}
    if not others:
        return buffer.finish(placed).to(device) if placed else torch.empty(0)
    if placed:
        others |= zip(placed, buffer.finish(placed), strict=True)
    return torch.stack([others[place].to(device) for place in sorted(others)])


class HostCropBuffer:
    """Collects crops, from several threads, in the CPU's memory; each is normalised by its thread."""

    def __init__(self, processing: ClassicProcessing, size: int) -> None:
        self._processing = processing
        self._batch = torch.empty(size, 3, processing.crop, processing.crop)

    def put(self, place: int, pixels: torch.Tensor) -> None:
        """A crop (height x width x 3 of uint8) for one place; each place is written once."""
        self._processing.write(pixels, self._batch[place])

    def finish(self, places: Sequence[int]) -> torch.Tensor:
        """The normalised crops of these places, n x 3 x height x width of float."""
        return self._batch if len(places) == len(self._batch) else self._batch[list(places)]


class CopyStream:
    """A stream of one GPU for copies, and what belongs to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, *shape: int) -> torch.Tensor:
        """Bytes in pinned memory; torch reuses what is freed."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Within, GPU work of this thread goes to the stream; at the end it is complete."""
        with torch.cuda.stream(self._stream):
            yield
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._stream)
        done.synchronize()

    def hand_over(self, batch: torch.Tensor) -> None:
        """The default stream uses the batch from now on: its memory must not be reused before."""
        batch.record_stream(torch.cuda.default_stream(self.device))


class DeviceCropBuffer:
    """Collects crops in pinned memory, copies them to the GPU at once and normalises them there; ``order`` is
    the memory format of the batch.
    """

    def __init__(
        self,
        processing: ClassicProcessing,
        size: int,
        stream: CopyStream,
        order: torch.memory_format = torch.channels_last,
    ) -> None:
        self._processing = processing
        self._stream = stream
        self._order = order
        self._staging = stream.pinned(size, processing.crop, processing.crop, 3)
        self._decoded: dict[int, torch.Tensor] = {}

    def put(self, place: int, pixels: torch.Tensor) -> None:
        """A crop for one place; each place is written once."""
        self._staging[place].copy_(pixels)

    def put_on_device(self, places: Sequence[int], crops: Callable[[], Sequence[torch.Tensor]]) -> None:
        """Crops for these places that ``crops`` makes on the GPU; raises what that raises."""
        if places:
            with self._stream.working():
                self._decoded.update(zip(places, crops(), strict=True))

    def finish(self, places: Sequence[int]) -> torch.Tensor:
        """The normalised crops of these places. Returns when they have arrived: any stream may use them."""
        with self._stream.working():
            pixels = self._on_device(places)
            batch = self._processing.normalise(pixels).contiguous(memory_format=self._order)
        self._stream.hand_over(batch)
        return batch

    def _on_device(self, places: Sequence[int]) -> torch.Tensor:
        device = self._stream.device
        if len(self._decoded) == len(places):
            return torch.stack([self._decoded[place] for place in places])
        pixels = self._staging.to(device, non_blocking=True)
        for place, crop in self._decoded.items():
            pixels[place] = crop
        if len(places) == len(pixels):
            return pixels
        return pixels[torch.tensor(list(places), device=device)]
