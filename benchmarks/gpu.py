"""A ResNet on a GPU behind the server: JPEGs in, classes out, against what the machine can do at most.

The limit is the slower of two loops in a process of their own: the network on batches that are on the GPU
already, and decoding on all cores (or on the GPU, with ``--decode nvjpeg``). The other comparison is the way
TorchServe works: decode, transform, copy and run one after the other. ``--dry-run`` takes all the steps
shortly with a small network; with ``--device cpu`` it needs no GPU, and its figures mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from benchmarks.archives import photograph
from benchmarks.gpu_loops import KINDS, GpuLoops, gpu_loops
from benchmarks.gpu_utilisation import Utilisation
from benchmarks.load import Load, run_load
from benchmarks.measure import Figure, Sample, figures, interleaved, of, ratio, sample
from benchmarks.options import ARCHS, common_parser, numbers, run, tell, tells_failures
from benchmarks.report import Mark, failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import BenchmarkError, ModelServer, call, model_server, sample_answer
from modelserver.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

NAME = "gpu-resnet"
SERVER = "server"
OF_THE_LIMIT, TIMES_SERIAL = 0.8, 5.0
DRY = {
    "arch": "mobilenet_v3_small",
    "batch": 2,
    "connections": (1, 4),
    "duration": 1.0,
    "warmup": 0.5,
    "reps": 1,
    "threads": 1,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a dry run has its own network and numbers."""
    parser = common_parser("benchmarks.gpu", __doc__, duration=10.0)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--arch", choices=ARCHS, default="resnet152", help="default: resnet152")
    add("--batch", type=int, default=32, help="the largest batch (default: 32)")
    add("--workers", type=int, default=1, help="worker processes on the GPU (default: 1)")
    add("--connections", type=numbers, default=(1, 8, 32, 128, 512), help="default: 1,8,32,128,512")
    add("--image", type=Path, help="the JPEG to send; without it one of about 110 kB is made")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of server and loops (default: fp32)")
    add("--decode", choices=("cpu", "nvjpeg"), default="cpu", help="where JPEGs are decoded (default: cpu)")
    add("--fast-decode", action="store_true", help="let the server decode JPEGs at a fraction of their size")
    add("--cuda-graphs", action="store_true", help="let the server replay the network from CUDA graphs")
    add("--threads", type=int, help="of torch, in the worker and in the loops (default: torch decides)")
    options = parser.parse_args(arguments)
    if options.dry_run:
        vars(options).update(DRY)
    return options


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a process does not start."""
    options = parse(arguments)
    picture = options.image.read_bytes() if options.image else photograph()
    facts = machine() | {
        "network": f"{options.arch}, random weights, seed 0, {options.precision}",
        "picture": f"{options.image or 'made'}, {len(picture):,} bytes",
        "server": f"batch {options.batch}, {options.workers} workers, {settings_of(options)}",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading(f"{options.arch} on {options.device}", facts))
    samples, used = measure(options, picture)
    summary = figures(samples)
    marks = limit_marks(samples, options.connections)
    print_report(summary, samples, marks, used)
    document = {"machine": facts, "figures": summary, "gpu_percent": used, "marks": marks, "samples": samples}
    write_json(options.out, document)
    return 1 if any(figure.void for figure in summary) else 0


def settings_of(options: argparse.Namespace) -> dict[str, object]:
    """The server's ``model-config.yaml``."""
    handler: dict[str, object] = {
        "torchvision": {"arch": options.arch, "weights": "random", "seed": 0},
        "decode": options.decode,
        "fast_decode": options.fast_decode,
        "cuda_graphs": options.cuda_graphs,
    }
    return {"handler": handler} | ({"precision": "bf16"} if options.precision == "bf16" else {})


def measure(options: argparse.Namespace, picture: bytes) -> tuple[list[Sample], dict[int, float | None]]:
    """The loops and the server at each number of connections, repeated; and how busy the GPU was (%)."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        image, store = folder / "picture.jpg", folder / "store"
        image.write_bytes(picture)
        archive = build_model(store, settings_of(options))
        loops = stack.enter_context(gpu_loops(loop_arguments(options, image), options.threads))
        print(f"device: {loops.device}\n", flush=True)
        gpus = {"number_of_gpu": 0} if options.device == "cpu" else {}
        server = stack.enter_context(model_server(store, folder / "server", gpus, options.threads))
        server.register(
            archive,
            NAME,
            batch_size=options.batch,
            batch_policy="adaptive",
            min_worker=options.workers,
            initial_workers=options.workers,
        )
        check_device(server, options.device)
        sample_answer(server, f"/predictions/{NAME}", picture)
        run_load(load_of(server, picture, max(options.connections), options.warmup), "asyncio")
        used: dict[int, list[float]] = {}
        samples = interleaved(options.reps, takers(options, server, loops, picture, used), tell)
    return samples, {at: sum(seen) / len(seen) if seen else None for at, seen in used.items()}


def build_model(store: Path, settings: Mapping[str, object]) -> str:
    """An archive that holds nothing but its configuration; returns its file name."""
    store.mkdir()
    config = store / "model-config.yaml"
    config.write_text(yaml.safe_dump(dict(settings)), "utf-8")
    archive = ArchiveConfig(
        model_name=NAME, handler="image_classifier", version="1.0", config_file=config, export_path=store
    )
    return build_archive(archive).name


def loop_arguments(options: argparse.Namespace, image: Path) -> list[str]:
    """The command line of the loops' process."""
    arguments = [
        options.arch,
        str(image.resolve()),
        "--device",
        options.device,
        "--batch",
        str(options.batch),
    ]
    arguments += ["--precision", options.precision, "--decode", options.decode]
    return arguments + (["--fast-decode"] if options.fast_decode else [])


def check_device(server: ModelServer, device: str) -> None:
    """Raises BenchmarkError where the workers do not compute on the device."""
    status, answer = call(server.management_port, "GET", f"/models/{NAME}")
    workers = json.loads(answer)[0]["workers"] if status == 200 else []
    if not workers or any(worker["gpu"] != (device == "cuda") for worker in workers):
        raise BenchmarkError(f"the workers do not run on {device}: {answer.decode(errors='replace')}")


def takers(
    options: argparse.Namespace,
    server: ModelServer,
    loops: GpuLoops,
    picture: bytes,
    used: dict[int, list[float]],
) -> list[Callable[[int], Sample]]:
    """What is measured in each repetition."""

    def take(connections: int, repetition: int) -> Sample:
        load = load_of(server, picture, connections, options.duration)
        with Utilisation() as utilisation:
            taken = sample(server, load, SERVER, repetition, "asyncio")
        used.setdefault(connections, []).extend(utilisation.percents)
        return taken

    return [
        *(partial(loops.run, kind, options.duration) for kind in KINDS),
        *(partial(take, connections) for connections in options.connections),
    ]


def load_of(server: ModelServer, picture: bytes, connections: int, seconds: float) -> Load:
    """Pictures for the model; batches have a fifth more time to fall into step first."""
    url = server.url(f"/predictions/{NAME}")
    return Load(url, picture, "image/jpeg", connections, seconds, settle=seconds / 5)


def to_limit(samples: Sequence[Sample], connections: int) -> float | None:
    """The server by the slower loop; None if one is void."""
    ratios = [ratio(samples, of(SERVER, connections), of(kind, 0)) for kind in ("chip", "decode")]
    known = [each for each in ratios if each is not None]
    return max(known) if len(known) == len(ratios) else None


def limit_marks(samples: Sequence[Sample], connections: Sequence[int]) -> list[Mark]:
    """At its best number of connections, the server comes near the limit, and leaves serial work behind."""
    near = [to_limit(samples, each) for each in connections]
    ahead = [ratio(samples, of(SERVER, each), of("serial", 0)) for each in connections]
    return [
        Mark("server / slower of chip and decode", _best(near), ">=", OF_THE_LIMIT),
        Mark("server / serial", _best(ahead), ">=", TIMES_SERIAL),
    ]


def _best(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def print_report(
    summary: Sequence[Figure],
    samples: Sequence[Sample],
    marks: Sequence[Mark],
    used: Mapping[int, float | None],
) -> None:
    """Table and marks on standard output."""
    headers = ["subject", "connections", "images/s", "p50 ms", "p99 ms", "GPU %", "to limit", "to serial"]
    rows = []
    for each in summary:
        at = each.connections
        if not at:
            rows.append([each.subject, "", number(each.rate), *[""] * 5])
            continue
        busy = used.get(at)
        seen = [number(value) for value in (each.rate, each.p50_ms, each.p99_ms)]
        against = [to_limit(samples, at), ratio(samples, of(SERVER, at), of("serial", 0))]
        rows.append(
            [each.subject, str(at), *seen, "" if busy is None else number(busy), *map(number, against)]
        )
    print(table(headers, rows))
    print("\n" + "\n".join([*map(str, marks), *failure_lines(summary), *noise_lines(summary)]))


if __name__ == "__main__":
    run(main)
