"""What it costs to make the network's input of a JPEG, in one thread: torchvision's steps and the ways here.

All ways but the last give the same numbers; that is checked before anything is measured. Rounds are
interleaved: what drifts on the machine meets every way. At the end, what each new picture size costs
``decode: nvjpeg`` on the processor, beside the GPU's work: the weights of its resizing.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.archives import photograph
from benchmarks.options import run
from benchmarks.report import heading, machine, number, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

ROUNDS = 30
SIZES = 1000
SIDES = (300, 1200)  # pixels of the pictures of many sizes
BASE = "torchvision's steps"
FASTEST = "fast_decode"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.decoding", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--dry-run", action="store_true", help="one round only: the figures mean nothing")
    return parser.parse_args(arguments)


def ways(file: bytes) -> dict[str, Callable[[], torch.Tensor]]:
    """Names and what they do: each returns the picture's floats, 3 x 224 x 224."""
    import torch  # noqa: PLC0415 - --help needs none of these
    from PIL import Image  # noqa: PLC0415

    from modelserver_handlers.image_classifier import classic_processing  # noqa: PLC0415
    from modelserver_handlers.pictures.pictures import open_picture  # noqa: PLC0415

    torch.set_num_threads(1)
    processing = classic_processing()
    resize, crop, _, normalise = processing.transforms
    place = torch.empty(3, 224, 224)

    def steps() -> torch.Tensor:
        floats: torch.Tensor = processing(Image.open(io.BytesIO(file)).convert("RGB"))
        return floats

    def crop_only() -> torch.Tensor:
        pixels = processing.pixels(open_picture(file, "RGB"))
        assert pixels is not None
        floats: torch.Tensor = normalise(pixels.permute(2, 0, 1).contiguous().float().div(255))
        return floats

    def written_in_place() -> torch.Tensor:
        picture = crop(resize(open_picture(file, "RGB")))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        processing.write(pixels.view(224, 224, 3), place)
        return place

    def both(enough: Callable[[tuple[int, int]], tuple[int, int]] | None) -> torch.Tensor:
        pixels = processing.pixels(open_picture(file, "RGB", enough))
        assert pixels is not None
        processing.write(pixels, place)
        return place

    return {
        BASE: steps,
        "resize what the crop shows": crop_only,
        "floats written in place": written_in_place,
        "both (image_classifier)": partial(both, None),
        FASTEST: partial(both, processing.resized_size),
    }


def seconds_of(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each, in processor time of this thread."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            began = time.thread_time()
            call()
            taken[name].append(time.thread_time() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def seconds_of_weights(sizes: Sequence[tuple[int, int]]) -> list[float]:
    """For each picture size (width, height), the seconds of this thread that its weights take.

    With the matrices that a GPU makes of them itself.
    """
    import torch  # noqa: PLC0415 - --help needs none of these

    from modelserver_handlers.image_classifier import classic_processing  # noqa: PLC0415
    from modelserver_handlers.pictures.resampling import taps, weights_of  # noqa: PLC0415

    processing, device = classic_processing(), torch.device("cpu")
    taps.cache_clear()
    taken: list[float] = []
    for size in sizes:
        frame = processing.frame(size)
        assert frame is not None
        began = time.thread_time()
        for axis in (frame.across, frame.down):
            made = taps(axis, processing.filter)
            weights_of([made], made.length, device)
        taken.append(time.thread_time() - began)
    return taken


def report_weights(count: int) -> None:
    """Prints what the weights of ``count`` random sizes take."""
    chance = random.Random(0)
    taken = seconds_of_weights([(chance.randint(*SIDES), chance.randint(*SIDES)) for _ in range(count)])
    means = [statistics.mean(taken), statistics.median(taken), max(taken)]
    title = f"weights of {count:,} new sizes, sides of {SIDES[0]} to {SIDES[1]} pixels"
    cells = ["CPU ms a size", *(number(1e3 * each) for each in means)]
    print("\n" + table([title, "mean", "median", "largest"], [cells]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, report; 1 if a way gives other numbers."""
    options = parse(arguments)
    file = photograph()
    rounds = 1 if options.dry_run else options.rounds
    facts = machine() | {"picture": f"{len(file):,} bytes", "rounds": f"{rounds}, interleaved"}
    print(heading("Decoding", facts))
    work = ways(file)
    expected = work[BASE]().clone()
    differences = {name: float((call() - expected).abs().max()) for name, call in work.items()}
    taken = seconds_of(work, rounds)
    rows = [
        [name, number(taken[name] * 1e3), number(taken[name] / taken[BASE]), f"{differences[name]:.2g}"]
        for name in work
    ]
    print(table(["way", "CPU ms a picture", "to torchvision's", "largest difference"], rows))
    report_weights(20 if options.dry_run else SIZES)
    return 1 if any(differences[name] for name in work if name != FASTEST) else 0


if __name__ == "__main__":
    run(main)
