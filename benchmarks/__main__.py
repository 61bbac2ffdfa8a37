"""``python -m benchmarks PROGRAM ...``: one door to the programs of this folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from benchmarks.options import run

PROGRAMS = {
    "compare": ("benchmarks.compare", "this server beside TorchServe, LitServe and others"),
    "peers": ("benchmarks.peers.install", "install those others below a folder"),
    "hot_path": ("benchmarks.hot_path", "what the server itself computes for a request"),
    "mixed": ("benchmarks.mixed", "short requests among slow ones, beside the ideal single queue"),
    "protocols": ("benchmarks.protocols", "what each protocol costs"),
    "grpc": ("benchmarks.grpc_cost", "what a gRPC call costs beside HTTP, earlier versions and TorchServe"),
    "cluster": ("benchmarks.cluster", "what workers behind the network cost, beside Ray Serve"),
    "language": ("benchmarks.language", "what OpenAI's API costs, beside LitServe"),
    "many": ("benchmarks.many", "models on demand beside LRU, Belady's optimum and Ray Serve"),
    "rollouts": ("benchmarks.rollouts", "what recordings, weights and shadows cost"),
    "gpu": ("benchmarks.gpu", "the server on a GPU, beside the chip's limit"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that is named; 2 and the list of them where none is."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in PROGRAMS:
        helps = bool(words) and words[0] in {"-h", "--help"}
        lines = [f"  {name:<14} {what}" for name, (_, what) in PROGRAMS.items()]
        text = "\n".join(["usage: python -m benchmarks PROGRAM [options]", "", *lines])
        print(text, file=sys.stdout if helps else sys.stderr)
        return 0 if helps else 2
    status: int = importlib.import_module(PROGRAMS[words[0]][0]).main(words[1:])
    return status


if __name__ == "__main__":
    run(main)
