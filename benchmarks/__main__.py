"""``python -m benchmarks PROGRAM ...``: one door to the programs of this folder."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from benchmarks.options import run

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = {
    "compare": ("benchmarks.compare", "this server beside TorchServe, LitServe and others"),
    "peers": ("benchmarks.peers.install", "install those others below a folder"),
    "growth": ("benchmarks.growth", "cost as models, bodies and clients become more"),
    "frontend": ("benchmarks.frontend", "what the server adds to a request"),
    "frontends": ("benchmarks.frontends", "what several front-end processes take off the server"),
    "resnet152": ("benchmarks.resnet152", "the server beside the bare PyTorch loop"),
    "batching": ("benchmarks.batching", "what batches gain and cost"),
    "hot_path": ("benchmarks.hot_path", "what the server itself computes for a request"),
    "simulate": ("benchmarks.simulate", "batch policies in a simulation, and beside the server"),
    "queues": ("benchmarks.queues", "one queue for all workers or one beside each, in a simulation"),
    "mixed": ("benchmarks.mixed", "short requests among slow ones, beside the ideal single queue"),
    "large_bodies": ("benchmarks.large_bodies", "large bodies by socket and by shared memory"),
    "protocols": ("benchmarks.protocols", "what each protocol costs"),
    "grpc": ("benchmarks.grpc_cost", "what a gRPC call costs beside HTTP, earlier versions and TorchServe"),
    "cluster": ("benchmarks.cluster", "what workers behind the network cost, beside Ray Serve"),
    "kserve_batcher": ("benchmarks.kserve_batcher", "the experiment of KServe's page on its batcher"),
    "observability": ("benchmarks.observability", "what access log and metrics cost"),
    "rollouts": ("benchmarks.rollouts", "what recordings, weights and shadows cost"),
    "first_answer": ("benchmarks.first_answer", "from `modelserver serve` to the first answer"),
    "decoding": ("benchmarks.decoding", "ways to prepare a picture"),
    "optimizations": ("benchmarks.optimizations", "ways to compute a network on a CPU"),
    "gpu": ("benchmarks.gpu", "the server on a GPU, beside the chip's limit"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that is named; 2 and the list of them where none is."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in PROGRAMS:
        asked = bool(given) and given[0] in {"-h", "--help"}
        lines = [f"  {name:<14} {what}" for name, (_, what) in PROGRAMS.items()]
        text = "\n".join(["usage: python -m benchmarks PROGRAM [options]", "", *lines])
        print(text, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    status: int = importlib.import_module(PROGRAMS[given[0]][0]).main(given[1:])
    return status


if __name__ == "__main__":
    run(main)
