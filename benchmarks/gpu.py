"""A ResNet on a GPU behind the server: JPEGs in, classes out, against what the machine can do at most.

The limit is a share of the slower of two loops in a process of their own: the network on batches that are on
the GPU already, and decoding on all cores (or on the GPU, with ``--decode nvjpeg``). The other comparison is
the way TorchServe works: decode, transform, copy and run one after the other. ``--dry-run`` takes all the
steps shortly with a small network; with ``--device cpu`` it needs no GPU, and its figures mean nothing.

``python -m benchmarks.gpu first`` is ``benchmarks.gpu_first``: the first look at a GPU, this and more.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

from benchmarks.archives import build, photograph
from benchmarks.gpu_loops import KINDS, PRECISIONS
from benchmarks.load import Load, run_load
from benchmarks.loops import Loops, loops
from benchmarks.measure import Sample, figures, interleaved, of, ratio, readings, sample
from benchmarks.options import ARCHS, Measured, Options, common_parser, numbers, perform, program, tell
from benchmarks.report import Mark, number, table
from benchmarks.servers import BenchmarkError, ModelServer, call_well, model_server
from benchmarks.works import Question
from modelserver.engine.telemetry.gpus import gpus

NAME = "gpu-resnet"
SERVER = "server"
# What of each loop's rate the server should reach, by where JPEGs are decoded, and why not more.
SHARES = {"cpu": {"chip": 0.8, "decode": 0.5}, "nvjpeg": {"chip": 0.5, "decode": 0.5}}
TIMES_SERIAL = 5.0
CONTEXT_MIB = 100  # a process that computes on a GPU takes more of its memory than this
QUICK = {"batch": 2, "duration": 1.0, "warmup": 0.5, "reps": 1, "threads": 1}
DRY = {"arch": "mobilenet_v3_small", "connections": (1, 4), **QUICK}


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line; a dry run has its own network and numbers."""
    parser = common_parser("gpu", __doc__, duration=10.0)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--arch", choices=ARCHS, default="resnet152", help="default: resnet152")
    add("--batch", type=int, default=32, help="the largest batch (default: 32)")
    add("--workers", type=int, default=1, help="worker processes on the GPU (default: 1)")
    add("--connections", type=numbers, default=(1, 8, 32, 128, 512), help="default: 1,8,32,128,512")
    add("--precision", choices=PRECISIONS, default="tf32", help="of server and loops (default: tf32)")
    add("--decode", choices=("cpu", "nvjpeg"), default="cpu", help="where JPEGs are decoded (default: cpu)")
    add("--fast-decode", action="store_true", help="let the server decode JPEGs at a fraction of their size")
    add("--cuda-graphs", action="store_true", help="let the server replay the network from CUDA graphs")
    add("--threads", type=int, help="of torch, in the worker and in the loops (default: torch decides)")
    options = parser.parse_args(arguments)
    if options.dry_run:
        vars(options).update(DRY)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a process does not start. ``first`` is another program."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["first"]:
        status: int = importlib.import_module("benchmarks.gpu_first").main(words[1:])
        return status
    return resnet(words)


@program(parse)
def resnet(options: Options) -> int:
    """Measure and report."""
    picture = photograph()
    facts = {
        "network": f"{options.arch}, random weights, seed 0, {options.precision}",
        "picture": f"{len(picture):,} bytes",
        "server": f"batch {options.batch}, {options.workers} workers, {settings_of(options)}",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    used: dict[int, float | None] = {}
    measured, title = partial(measure, options, picture, used), f"{options.arch} on {options.device}"
    return perform(options, title, facts, (), measured, more={"gpu_percent": used})


def settings_of(options: Options) -> dict[str, object]:
    """The server's ``model-config.yaml``."""
    handler: dict[str, object] = {
        "torchvision": {"arch": options.arch, "weights": "random", "seed": 0},
        "decode": options.decode,
        "fast_decode": options.fast_decode,
        "cuda_graphs": options.cuda_graphs,
    }
    # Without the key, GPUs use TF32.
    return {"handler": handler} | ({} if options.precision == "tf32" else {"precision": options.precision})


def measure(options: Options, picture: bytes, used: dict[int, float | None]) -> Measured:
    """The loops and the server at each number of connections, repeated.

    ``used`` gets by the number of connections how busy the GPU was (%).
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        image = folder / "picture.jpg"
        image.write_bytes(picture)
        names = ("arch", "device", "batch", "precision", "decode", "fast_decode")
        same = {name: vars(options)[name] for name in names}
        beside = stack.enter_context(
            loops("benchmarks.gpu_loops", {**same, "image": str(image.resolve())}, options.threads)
        )
        print(f"device: {beside.device}\n", flush=True)
        server = stack.enter_context(served(options, folder, picture))
        run_load(load_of(server, picture, max(options.connections), options.warmup), "asyncio")
        seen: dict[int, list[float]] = {}
        samples = interleaved(options.reps, takers(options, server, beside, picture, seen), tell)
    used.update({at: sum(some) / len(some) if some else None for at, some in seen.items()})
    marks = limit_marks(samples, options.connections, options.decode)
    return samples, report(samples, used, options.decode), marks


@contextlib.contextmanager
def served(options: Options, folder: Path, picture: bytes) -> Iterator[ModelServer]:
    """A server below ``folder`` that answers pictures on the device. Raises BenchmarkError."""
    store = folder / "store"
    archive = build_model(store, settings_of(options))
    before = of_gpu("memory_used_mb")
    settings = {"number_of_gpu": 0} if options.device == "cpu" else {}
    with model_server(store, folder / "server", settings, options.threads) as server:
        workers = {"min_worker": options.workers, "initial_workers": options.workers}
        server.register(archive, NAME, batch_size=options.batch, batch_policy="adaptive", **workers)
        call_well(server.port, "POST", f"/predictions/{NAME}", picture)
        check_device(server, options.device, before)
        yield server


def of_gpu(what: str) -> float | None:
    """A field of the driver's reading of the first GPU in CUDA_VISIBLE_DEVICES; None if it cannot be read."""
    reading = next(iter(gpus.read()), None)
    value: float | None = getattr(reading, what, None)
    return value


def build_model(store: Path, settings: Mapping[str, object]) -> str:
    """An archive that holds nothing but its configuration; returns its file name."""
    store.mkdir()
    config = store / "model-config.yaml"
    config.write_text(yaml.safe_dump(dict(settings)), "utf-8")
    return build(store, NAME, "image_classifier", config_file=config)


def check_device(server: ModelServer, device: str, before: float | None) -> None:
    """Raises BenchmarkError where the workers do not compute on the device, by describe or by the memory of
    the GPU, of which ``before`` MiB were used without the server.
    """
    workers = server.describe(NAME)["workers"]
    if not workers or any(worker["gpu"] != (device == "cuda") for worker in workers):
        raise BenchmarkError(f"the workers do not run on {device}: {workers}")
    now = of_gpu("memory_used_mb")
    if device == "cuda" and None not in {before, now} and now < before + CONTEXT_MIB:  # type: ignore[operator]
        raise BenchmarkError(f"the GPU has {now:.0f} MiB in use, and without the server it had {before:.0f}")


def takers(
    options: Options,
    server: ModelServer,
    beside: Loops,
    picture: bytes,
    used: dict[int, list[float]],
) -> list[Callable[[int], Sample]]:
    """What is measured in each repetition."""

    def take(connections: int, repetition: int) -> Sample:
        load = load_of(server, picture, connections, options.duration)
        with readings(partial(of_gpu, "utilization_percent"), 0.1) as percents:
            taken = sample(server, load, SERVER, repetition, "asyncio")
        used.setdefault(connections, []).extend(each for each in percents if each is not None)
        return taken

    return [
        *(partial(beside.run, kind, options.duration, kind) for kind in KINDS),
        *(partial(take, connections) for connections in options.connections),
    ]


def load_of(server: ModelServer, picture: bytes, connections: int, seconds: float) -> Load:
    """Pictures for the model; batches have a fifth more time to fall into step first."""
    question = Question(f"/predictions/{NAME}", picture, "image/jpeg")
    return Load(server.port, question, connections, seconds, settle=seconds / 5)


def to_limit(samples: Sequence[Sample], connections: int, decode: str) -> float | None:
    """The server by the smaller of the loops' shares; None if one is void."""
    parts = [
        (ratio(samples, of(SERVER, connections), of(kind, 0)), each) for kind, each in SHARES[decode].items()
    ]
    known = [part / share for part, share in parts if part is not None]
    return max(known) if len(known) == len(parts) else None


def limit_marks(samples: Sequence[Sample], connections: Sequence[int], decode: str) -> list[Mark]:
    """At its best number of connections, the server reaches the limit, and leaves serial work behind."""
    near = [to_limit(samples, each, decode) for each in connections]
    ahead = [ratio(samples, of(SERVER, each), of("serial", 0)) for each in connections]
    shares = " and ".join(f"{share:g} {kind}" for kind, share in SHARES[decode].items())
    return [
        Mark(f"server / smaller of {shares}", _best(near), ">=", 1.0),
        Mark("server / serial", _best(ahead), ">=", TIMES_SERIAL),
    ]


def _best(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def report(samples: Sequence[Sample], used: Mapping[int, float | None], decode: str) -> str:
    """A Markdown table."""
    headers = ["subject", "connections", "images/s", "p50 ms", "p99 ms", "GPU %", "to limit", "to serial"]
    rows = []
    for each in figures(samples):
        at = each.connections
        if not at:
            rows.append([each.subject, "", number(each.rate), *[""] * 5])
            continue
        busy = used.get(at)
        seen = [number(value) for value in (each.rate, each.p50_ms, each.p99_ms)]
        against = [to_limit(samples, at, decode), ratio(samples, of(SERVER, at), of("serial", 0))]
        rows.append(
            [each.subject, str(at), *seen, "" if busy is None else number(busy), *map(number, against)]
        )
    return table(headers, rows) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
