"""This server beside others: each starts, is loaded by the same client in turns, and its ratios are reported.

References are bare uvicorn with an echo, and PyTorch loops without a server. Peers are TorchServe as shipped,
the same with its logs off, and LitServe; Ray Serve when it is named. What cannot start is reported, with its
reason. Any answer that is not 2xx voids a figure.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.archives import CALIBRATION, build_mlp, build_noop, build_resnet, build_variant, photograph
from benchmarks.comparison_report import work_document, work_text
from benchmarks.load import chosen
from benchmarks.measure import figures
from benchmarks.options import ARCHS, Options, common_parser, names, numbers, program
from benchmarks.paced import CONNECTIONS as PACED_CONNECTIONS
from benchmarks.peers.launch import SUBJECTS, Setup, Subject
from benchmarks.peers.packages import PEERS, python_of, version_of
from benchmarks.report import heading, installed, machine, table, write_json
from benchmarks.servers import QUEUE_SIZE
from benchmarks.side_by_side import LOOP, Plan, Result, measure_work
from benchmarks.targets import marks
from benchmarks.works import WORKS, Kind, Work
from modelserver.engine.resources import usable_cpus

VARIANTS: dict[str, dict[str, object]] = {
    "auto": {"handler": {"optimize": "auto"}},
    "plain": {"handler": {"optimize": "off"}},
    "compile": {"pt2": {"compile": {"enable": True}}},
    "bf16": {"handler": {"precision": "bf16"}},
    "bf16-compile": {"handler": {"precision": "bf16"}, "pt2": {"compile": {"enable": True}}},
    "int8": {"handler": {"precision": "int8", "calibration": CALIBRATION}},
}
REHEARSED = ("start", "noop_b32", "mlp_b32")
REHEARSING = ("echo", "window", "adaptive")
DRY_RUN = "a rehearsal: our own server and the echo only, for moments; its figures mean nothing"
OUT = "folder for compare.json and compare.md"


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line; a rehearsal changes what was not given."""
    parser = common_parser("compare", __doc__, duration=5.0, out=OUT, dry_run=DRY_RUN)
    add = parser.add_argument
    groups = {subject.group for subject in SUBJECTS.values()} | {LOOP}
    to_be_named = ", ".join(subject.name for subject in SUBJECTS.values() if subject.is_optional)
    add("--works", type=names(WORKS), help=f"default: all of {','.join(WORKS)}")
    add(
        "--subjects",
        type=names({*SUBJECTS, *groups}),
        help=f"of {','.join([*SUBJECTS, LOOP])}; modelserver stands for all of ours "
        f"(default: all but {to_be_named})",
    )
    add("--peers", type=Path, metavar="DIR", help="where `python -m benchmarks peers DIR` put them")
    add("--connections", type=numbers, help="only these of a work's numbers, where it has them")
    add("--arch", choices=ARCHS, default="resnet152", help="a smaller network, to try it out")
    add("--threads", type=int, default=usable_cpus(), help="of a ResNet (default: all cores)")
    add("--queue", type=int, default=QUEUE_SIZE, help="requests that may wait, where there is a bound")
    options = parser.parse_args(arguments)
    if options.dry_run:
        options.works = options.works or REHEARSED
        options.subjects = options.subjects or REHEARSING
        options.connections = options.connections or (8,)
        options.duration, options.warmup, options.reps = min(options.duration, 0.3), 0.1, 1
        options.client = "asyncio"
    return options


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if a figure is void or an archive cannot be made."""
    works = [WORKS[name] for name in options.works or WORKS]
    subjects = chosen_subjects(options.subjects)
    facts = machine() | {
        "client": f"{chosen(options.client)}; ours for pictures",
        "half load": f"arrivals by chance over {PACED_CONNECTIONS} connections",
        "queues": f"{options.queue} requests where a server has a bound",
        "network": f"{options.arch}, random weights, seed 0",
        "threads of a ResNet": str(options.threads),
        "measurements": f"{options.reps} x {options.duration:g} s (longer for pictures), interleaved",
    }
    print(heading("Comparison", facts))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    parts = [heading("Comparison", facts)]
    with prepared(options, works) as plan:
        for work in works:
            results[work.name] = measure_work(work, subjects, plan)
            parts.append(work_text(results[work.name]))
            print(parts[-1], flush=True)
            # A long run that is cut off keeps what it has.
            write(options, facts, subjects, results)
    parts.append(closing(subjects, results, options.peers))
    print(parts[-1])
    if options.out:
        (options.out / "compare.md").write_text("\n".join([*parts, ""]), "utf-8")
        print(f"wrote {options.out}")
    return 1 if any(figure.void for result in results.values() for figure in figures(result.samples)) else 0


def chosen_subjects(names: Sequence[str] | None) -> list[Subject]:
    """The servers that are named, or whose group is; without names all that need not be named."""
    if names is None:
        return [subject for subject in SUBJECTS.values() if not subject.is_optional]
    return [subject for subject in SUBJECTS.values() if {subject.name, subject.group} & set(names)]


@contextlib.contextmanager
def prepared(options: Options, works: Sequence[Work]) -> Iterator[Plan]:
    """Archives and a folder, which are gone with the block. Raises BenchmarkError."""
    # Sockets of some peers lie deep below it, and the paths of sockets may not be long.
    with tempfile.TemporaryDirectory(prefix="bm-") as name:
        folder = Path(name)
        store = folder / "store"
        store.mkdir()
        kinds = {work.kind for work in works}
        peers, archives = options.peers and options.peers.resolve(), build_archives(store, kinds, options)
        setup = Setup(store, peers, archives, options.arch, photograph(), options.threads, options.queue)
        loops = options.subjects is None or LOOP in options.subjects
        yield Plan(folder, setup, options, loops, lone=5 if options.dry_run else 200)


def build_archives(store: Path, kinds: set[Kind], options: Options) -> dict[str, str]:
    """File names by model, and by model and variant for the ResNet."""
    archives = {}
    if "noop" in kinds:
        archives["noop"] = build_noop(store)
    if "mlp" in kinds:
        archives["mlp"] = build_mlp(store)
    if "resnet" in kinds:
        archives["resnet"] = build_resnet(store, options.arch)
        for variant, settings in VARIANTS.items():
            name = f"{options.arch}-{variant}"
            archives[f"resnet {variant}"] = build_variant(store, archives["resnet"], name, settings)
    return archives


def write(
    options: Options,
    facts: Mapping[str, str],
    subjects: Sequence[Subject],
    results: Mapping[str, Result],
) -> None:
    """JSON of what there is so far."""
    if options.out is None:
        return
    document = {
        "machine": facts,
        "subjects": {
            each.name: {"title": each.title, "version": version(each, options.peers)} for each in subjects
        },
        "works": {name: work_document(result) for name, result in results.items()},
        "marks": marks(results),
    }
    with contextlib.redirect_stdout(sys.stderr):
        write_json(options.out / "compare.json", document)


def closing(subjects: Sequence[Subject], results: dict[str, Result], peers: Path | None) -> str:
    """Who took part, with which queue, or why not; and the marks."""
    rows = []
    for subject in subjects:
        queues = [result.queues[subject.name] for result in results.values() if subject.name in result.queues]
        reasons = [result.refusals.get(subject.name, "") for result in results.values()]
        reasons = [reason.splitlines()[0] for reason in reasons if reason]
        state = f"cannot start: {reasons[0]}" if reasons else "ran" if queues else "no part in these works"
        rows.append([subject.title, version(subject, peers) or "-", queues[0] if queues else "-", state])
    rendered = table(["server", "version", "queue", "state"], rows)
    return "\n".join(["## Servers", "", rendered, "", "## Marks", "", *map(str, marks(results))])


def version(subject: Subject, peers: Path | None) -> str | None:
    """Of the server itself, None where it is not installed."""
    if subject.peer is None:
        return installed("uvicorn" if subject.name == "echo" else "modelserver")
    return version_of(python_of(peers, subject.peer), PEERS[subject.peer].package) if peers else None


if __name__ == "__main__":
    raise SystemExit(main())
