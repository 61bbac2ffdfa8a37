"""One batch on its way from the rows of requests to one tensor, for ClassicProcessing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.pictures.pictures import BadPicture, picture_input

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL import Image

    from modelserver_handlers.pictures.classic import ClassicProcessing
    from modelserver_handlers.pictures.transfer import Landing

# None: the crop has landed. A tensor: it has not, since the row is numbers or no ordinary picture.
Outcome = torch.Tensor | BadPicture | None


class Gathering:
    """Turns rows into crops that land in their places, and joins them with what else the rows held."""

    def __init__(
        self, processing: ClassicProcessing, landing: Landing, open_: Callable[[bytes], Image.Image]
    ) -> None:
        self._processing = processing
        self._landing = landing
        self._open = open_

    def take(self, place: int, row: Any) -> Outcome:
        """Decode and land one row; several threads may do it at once."""
        try:
            value = picture_input(row)
            if isinstance(value, torch.Tensor):
                return value
            picture = self._open(value)
        except BadPicture as bad:
            return bad
        pixels = self._processing.pixels(picture)
        if pixels is None:
            prepared: torch.Tensor = self._processing(picture)
            return prepared
        self._landing.put(place, pixels)
        return None

    def join(self, outcomes: Sequence[Outcome], device: torch.device | None) -> torch.Tensor:
        """One tensor of all rows but the bad ones, on the device; empty if all are bad."""
        landed = [place for place, outcome in enumerate(outcomes) if outcome is None]
        others = {place: each for place, each in enumerate(outcomes) if isinstance(each, torch.Tensor)}
        if not others:
            return self._landing.finish(landed).to(device) if landed else torch.empty(0)
        if landed:
            others |= zip(landed, self._landing.finish(landed), strict=True)
        return torch.stack([others[place].to(device) for place in sorted(others)])
