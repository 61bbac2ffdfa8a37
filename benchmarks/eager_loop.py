"""The bare PyTorch loop that a server is compared with: the network, eager, batch after batch, nothing else.

``decode`` opens and transforms each picture and names the five likeliest classes; the FORMS of
``benchmarks.networks`` do that too, in other ways and with their pictures decoded in several threads.
``benchmarks.loops`` starts it as a process of its own.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.loops import Work, options_of_process, serve


def main() -> None:
    """Answer the lines of standard input until it ends."""
    options = options_of_process()
    import torch  # noqa: PLC0415 - only the looping process needs it

    from benchmarks.networks import Network, Rows  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    network = Rows() if options.arch == "mlp" else Network(Path(options.archive), options.arch)
    bodies = [Path(options.body).read_bytes()] * options.batch
    serve(f"{options.threads} threads", lambda kind: Work(network.work(kind, bodies), options.batch))


if __name__ == "__main__":
    main()
