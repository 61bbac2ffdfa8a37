"""Many models that are loaded on demand, with memory for a few of them.

Requests arrive by chance (Poisson), for models by Zipf's law, and then for a set of models that drifts. Our
server's hits are compared to those of its policy, of LRU and of Belady's optimum, simulated with the same
requests, sizes and budget; its latencies to those of a server that has all of its fewer models loaded,
asked in turns; and with ``--peers`` all to Ray Serve's multiplexing. What models need is learned before.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import psutil

from benchmarks.archives import build, build_resnet, photograph
from benchmarks.load import percentile
from benchmarks.measure import readings
from benchmarks.open_loop import run_open_loop
from benchmarks.options import Measured, Options, common_parser, perform, program, say
from benchmarks.paced import poisson
from benchmarks.parking import BELADY, POLICY, Arrival, drifting, simulated, zipf
from benchmarks.peers.launch import Launch
from benchmarks.peers.many_model import FITS, FOLDER, PORT, WEIGHTS, write_weights
from benchmarks.peers.packages import python_of
from benchmarks.report import Mark, number, table
from benchmarks.servers import ROOT, ModelServer, Running, call, call_well, cpu_seconds, model_server
from benchmarks.serving import served
from benchmarks.works import Question
from modelserver.ext.parking.memory import footprint
from modelserver.ext.parking.needs import Need, Needs
from modelserver.models.environments.cache_folder import VARIABLE, cache_folder
from modelserver.tools.tune.own_server import family, free_ports

# Bytes of weights that a digit network does not need, by kind; None: there are no weights.
KINDS = {"noop": None, "digit": 0, "large": 100_000_000}
HANDLERS = ROOT / "benchmarks" / "peers"
CHOSEN = "serve_multiplexed_model_id"  # Ray Serve's header
OURS, LOADED, RAY = "modelserver", "all loaded", "Ray Serve"
# Of the first part nothing is reported: the most popular models are loaded.
FIRST, STEADY, DRIFTING = "first", "Zipf", "drifting"
COLD = {"noop": 0.1, "digit": 0.25}  # seconds to the first answer of a parked one
RESNET, BARE, COLD_STARTS = "resnet152", "torch.load and building of resnet152", 5
MORE = 300  # models that are registered beside them
ROUNDS = 4  # of each part, between which the loaded server is asked


@dataclass(slots=True)
class Seen:
    """Latencies in seconds of requests that found their model loaded, by model, and of those that waited."""

    warm: list[tuple[str, float]] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """The share of requests that found their model loaded."""
        return len(self.warm) / max(1, len(self.warm) + len(self.cold) + self.failures.total())

    def median(self, models: Sequence[str]) -> float:
        """Of the latencies of these models, when they were loaded; not a number if they never were."""
        return statistics.median([s for model, s in self.warm if model in models] or [float("nan")])

    def add(self, other: Seen) -> None:
        self.warm += other.warm
        self.cold += other.cold
        self.failures += other.failures


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("many", __doc__, duration=60.0, reps=0, loads=False)
    add = parser.add_argument
    add("--peers", type=Path, help="measure Ray Serve, which is installed there, as well")
    add("--models", type=int, default=1000, help="in all, a third of them digit networks; default: 1000")
    add("--large", type=int, default=5, help="of these with 100 MB of weights; default: 5")
    add("--fits", type=int, default=100, help="about so many have memory; default: 100")
    add("--loaded", type=int, default=40, help="models of the server that has all loaded; default: 40")
    add("--rate", type=float, default=6.0, help="requests per second; default: 6")
    add("--power", type=float, default=1.1, help="of Zipf's law; default: 1.1")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if a server does not start."""
    chance = Random(7)
    names = [f"{'noop' if n % 3 else 'digit'}-{n}" for n in range(options.models - options.large)]
    names += [f"large-{n}" for n in range(options.large)]
    chance.shuffle(names)
    parts = traces(names, options, chance)
    facts = {
        "models": f"{options.models}, {options.large} of them with 100 MB; memory for {options.fits}",
        "requests": f"{options.rate:g}/s, twice {options.duration:g} s, Zipf {options.power:g}",
    }
    plan = [f"{part}: {len(trace)} requests" for part, trace in parts.items()]
    return perform(options, "Many models", facts, plan, partial(measure, names, parts, options))


def traces(names: Sequence[str], options: Options, chance: Random) -> dict[str, list[Arrival]]:
    """The requests of all parts, one after the other."""
    popular = list(reversed(names[: options.fits]))
    first = [Arrival(number / options.rate, name) for number, name in enumerate(popular)]
    begin = len(first) / options.rate
    second, third = (
        [begin + turn * options.duration + at for at in poisson(options.rate, options.duration, chance)]
        for turn in range(2)
    )
    return {
        FIRST: first,
        STEADY: zipf(names, second, options.power, chance),
        DRIFTING: drifting(names, third, options.power, chance),
    }


def measure(names: Sequence[str], parts: Mapping[str, list[Arrival]], options: Options) -> Measured:
    """All servers and policies."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bm-")))
        store = build_store(folder)
        by_kind, cold = learn(store, folder / "learning")
        needs = {name: by_kind[kind_of(name)] for name in names}
        budget = options.fits * statistics.fmean(need.memory for need in needs.values())
        few = [name for name in names if kind_of(name) != "large"][: options.loaded]
        with (
            on_demand(store, folder / "ours", needs, int(budget)) as (server, start_time),
            all_loaded(store, folder / "loaded", few) as loaded,
            readings(lambda: footprint(workers(server))[1], 1.0) as sizes,
        ):
            ask(server, parts[FIRST])
            outcomes = {part: take(server, loaded, few, parts[part]) for part in (STEADY, DRIFTING)}
            seconds, size = register(server)
        ray, ray_memory = dict[str, Seen](), 0
        try:
            ray, ray_memory = take_ray(parts, options, folder) if options.peers else (ray, 0)
        except Exception as error:  # noqa: BLE001 - the server's own figures are not lost
            say(f"{RAY} is left out: {error}")
    policies = simulated([each for trace in parts.values() for each in trace], needs, budget)
    rows, marks, start = list[list[str]](), list[Mark](), len(parts[FIRST])
    for part, (ours, bare, ratio) in outcomes.items():
        place = slice(start, start := start + len(parts[part]))
        shares = {name: statistics.fmean(hits[place]) for name, hits in policies.items()}
        rows += rows_of(part, shares, {OURS: ours, LOADED: bare, **({RAY: ray[part]} if ray else {})})
        marks += [
            Mark(f"{part}: hits to Belady's optimum", ours.rate / shares[BELADY], ">=", 0.9),
            Mark(f"{part}: hits to our policy's, simulated", ours.rate / shares[POLICY], ">=", 0.98),
            Mark(f"{part}: p50 of loaded models to all loaded", ratio, "<=", 1.05),
            Mark(f"{part}: failed or lost", float(ours.failures.total()), "<=", 0),
        ]
    largest = max(need.memory for need in by_kind.values())
    above = max(0.0, max(sizes) - budget) / largest
    marks.append(Mark("memory above the budget, in models of the largest kind", above, "<=", 1))
    marks.append(Mark(f"seconds until a server with {len(names)} models listens", start_time, "<=", 5))
    to_bare = cold[RESNET] / cold[BARE]
    marks += [
        *(Mark(f"{kind}, parked: first answer, p50 in s", cold[kind], "<=", COLD[kind]) for kind in COLD),
        Mark(f"{RESNET}, parked: first answer to torch.load, building", to_bare, "<=", 1.5),
        Mark("registration without a worker, p50 in ms", 1e3 * seconds, "<=", 20),
        Mark("kB of the server for each", size / 1e3, "<=", 60),
    ]
    starts = ", ".join(f"{kind} {1e3 * seconds:.0f} ms" for kind, seconds in cold.items())
    headers = ["requests", "by", "hits", "to Belady's", "p50 ms", "p99 ms", "cold p50 ms", "p99 ms", "failed"]
    kinds = ", ".join(f"{kind} {need.memory / 1e6:.1f} MB" for kind, need in by_kind.items())
    more = f"; {RAY}'s replica got {ray_memory / 1e6:,.0f} MB more" if ray else ""
    memory = f"Memory: {kinds}; budget {budget / 1e6:,.0f} MB, at most {max(sizes) / 1e6:,.0f} MB{more}."
    text = [table(headers, rows), memory, f"First answers of parked models: {starts}.", ""]
    return [], "\n\n".join(text), marks


def rows_of(part: str, shares: Mapping[str, float], results: Mapping[str, Seen]) -> list[list[str]]:
    """Rows of the table: policies that were simulated, and servers."""
    best = shares[BELADY]
    rows = [
        [part, f"{name}, simulated", f"{s:.3f}", f"{s / best:.2f}", *[""] * 5] for name, s in shares.items()
    ]
    for name, seen in results.items():
        warm = [latency for _, latency in seen.warm]
        latencies = [
            number(1e3 * percentile(some, p)) if some else "" for some in (warm, seen.cold) for p in (50, 99)
        ]
        to_best = "" if name == LOADED else f"{seen.rate / best:.2f}"
        rows.append([part, name, f"{seen.rate:.3f}", to_best, *latencies, str(seen.failures.total())])
    return rows


def build_store(folder: Path) -> Path:
    """An archive of each kind; the folder of that name has the weights, for Ray Serve."""
    for kind, more in KINDS.items():
        (folder / kind).mkdir()
        weights, handler = {}, "many_noop.py"
        if more is not None:
            write_weights(folder / kind, more)
            weights["extra_files"], handler = str(folder / kind / WEIGHTS), "many_model.py"
        build(folder / "store", kind, str(HANDLERS / handler), archive_format="zip-store", **weights)
    return folder / "store"


def kind_of(name: str) -> str:
    return name.partition("-")[0]


def learn(store: Path, folder: Path) -> tuple[dict[str, Need], dict[str, float]]:
    """What a model of each kind needs: the memory after some requests, and the seconds to load; and what
    :func:`cold_starts` says.
    """
    result = {}
    with model_server(store, folder, {"load": "on-demand", "max_models_memory": 4 << 30}) as server:
        for kind in ("first", *KINDS):
            # The process that workers are forked from is started for the first.
            archive = f"{kind if kind in KINDS else 'digit'}.mar"
            call_well(server.management_port, "POST", f"/models?url={archive}&model_name={kind}")
            call_well(server.management_port, "POST", f"/models/{kind}?action=load", timeout=120)
            ask(server, [Arrival(0.0, kind)] * 3)
            version = server.describe(kind)
            _, memory = footprint(worker["pid"] for worker in version["workers"])
            result[kind] = Need(memory, version["parking"]["loadTime"] / 1e3)
            park(server, kind)
        return {kind: result[kind] for kind in KINDS}, cold_starts(server, store, folder)


def park(server: ModelServer, name: str) -> None:
    """Parks the model, and returns when its processes have ended."""
    version = server.describe(name)
    while call(server.management_port, "POST", f"/models/{name}?action=park")[0] != 200:
        time.sleep(0.05)
    while any(psutil.pid_exists(worker["pid"]) for worker in version["workers"]):
        time.sleep(0.05)


def cold_starts(server: ModelServer, store: Path, folder: Path) -> dict[str, float]:
    """Medians of the seconds until a parked model's first answer, and until this process, which has torch,
    has loaded and built the same ResNet-152, in turns. Of the first turn nothing is reported.
    """
    import torch  # noqa: PLC0415 -- only for this
    from torchvision.models import resnet152  # noqa: PLC0415

    archive = build_resnet(store, RESNET)
    call_well(server.management_port, "POST", f"/models?url={archive}&model_name={RESNET}")
    weights = zipfile.ZipFile(store / archive).extract(f"{RESNET}.pth", folder)
    seconds: dict[str, list[float]] = {}
    for _ in range(COLD_STARTS + 1):
        for kind, body in {**dict.fromkeys(KINDS, b"x"), RESNET: photograph()}.items():
            began = time.monotonic()
            call_well(server.port, "POST", f"/predictions/{kind}", body)
            seconds.setdefault(kind, []).append(time.monotonic() - began)
            park(server, kind)
        began = time.monotonic()
        resnet152().load_state_dict(torch.load(weights, weights_only=True))
        seconds.setdefault(BARE, []).append(time.monotonic() - began)
    return {kind: statistics.median(some[1:]) for kind, some in seconds.items()}


@contextlib.contextmanager
def on_demand(
    store: Path, folder: Path, needs: Mapping[str, Need], budget: int
) -> Iterator[tuple[ModelServer, float]]:
    """A server that starts with all models, none of them loaded, and has learned what they need; also the
    seconds until it listens.
    """
    cache = {VARIABLE: str(folder / "cache")}
    folder.mkdir()
    learned = Needs(cache_folder("parking", cache))
    for name, need in needs.items():
        files = zipfile.ZipFile(store / f"{kind_of(name)}.mar").infolist()
        learned.learn(f"{name}/1.0/{sum(each.file_size for each in files)}", need)
    learned.save()
    models = ",".join(f"{name}={kind_of(name)}.mar" for name in needs)
    settings = {"load": "on-demand", "max_models_memory": budget, "idle_timeout": 0, "load_models": models}
    began = time.monotonic()
    with model_server(store, folder, settings, variables=cache) as server:
        start = time.monotonic() - began
        spent = sum(cpu_seconds(server.pid).values())
        say(f"{len(needs)} models: listening after {start:.1f} s, {spent:.1f} s of processors")
        yield server, start


@contextlib.contextmanager
def all_loaded(store: Path, folder: Path, names: Sequence[str]) -> Iterator[ModelServer]:
    """A server with a few models, each with its worker."""
    with model_server(store, folder) as server:
        for name in names:
            server.register(f"{kind_of(name)}.mar", name)
        yield server


def register(server: ModelServer) -> tuple[float, float]:
    """Registers more models: the median of the seconds, and the memory that each takes in the server."""
    seconds, process = list[float](), psutil.Process(server.pid)
    before = process.memory_info().rss
    for place in range(MORE):
        began = time.monotonic()
        call_well(server.management_port, "POST", f"/models?url=noop.mar&model_name=more-{place}")
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds), (process.memory_info().rss - before) / MORE


def workers(server: Running) -> list[int]:
    """The processes of the server's models."""
    pids = []
    for each in family(server.pid):
        with contextlib.suppress(psutil.Error):
            if "modelserver.engine.worker" in each.cmdline():
                pids.append(each.pid)
    return pids


def take(
    server: ModelServer, loaded: ModelServer, few: Sequence[str], trace: Sequence[Arrival]
) -> tuple[Seen, Seen, float]:
    """The requests of a part in rounds, after each of which the other server gets some of them: what came of
    both, and the median of the ratios of latencies of models that are in both, and loaded.
    """
    ours, bare, ratios = Seen(), Seen(), list[float]()
    for turn in range(ROUNDS):
        some = trace[turn * len(trace) // ROUNDS : (turn + 1) * len(trace) // ROUNDS]
        mine = ask(server, some)
        # Other models' requests go to one of the few.
        folded = [
            each if each.model in few else Arrival(each.at, few[place % len(few)])
            for place, each in enumerate(some[: len(some) // 2])
        ]
        other = ask(loaded, folded)
        ours.add(mine)
        bare.add(other)
        ratios.append(mine.median(few) / other.median(few))
        say(f"hits {ours.rate:.3f}, p50 to all loaded {ratios[-1]:.2f}, failures {dict(ours.failures)}")
    return ours, bare, statistics.median(each for each in ratios if each > 0)


def ask(server: Running, arrivals: Sequence[Arrival], *, path: str = "/predictions/{}") -> Seen:
    """Sends the requests, the first one at once; a model is named in the path and in a header."""
    questions = [Question(path.format(each.model), b"x", "", ((CHOSEN, each.model),)) for each in arrivals]
    times = [each.at - arrivals[0].at for each in arrivals]
    outcome = run_open_loop(server.port, [each.message() for each in questions], times)
    seen = Seen(failures=outcome.failures)
    for answer in outcome.answers:
        # Ray Serve's answers come in chunks.
        (loaded,) = re.findall(rb'"loaded": *([\d.]+)', answer.content)
        if float(loaded) < outcome.began + answer.sent:
            seen.warm.append((arrivals[answer.number].model, answer.latency))
        else:
            seen.cold.append(answer.latency)
    return seen


def take_ray(
    parts: Mapping[str, Sequence[Arrival]], options: Options, folder: Path
) -> tuple[dict[str, Seen], int]:
    """What came of the requests by Ray Serve, and the memory that its processes got at most."""
    (port,) = free_ports(1)
    (folder / "ray").mkdir()
    variables = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder / "ray")}
    variables |= {PORT: str(port), FITS: str(options.fits), FOLDER: str(folder)}
    launch = Launch(
        (str(python_of(options.peers.resolve(), "rayserve")), "-m", "benchmarks.peers.apps.rayserve_many"),
        port,
        Question("/", b"x", ""),
        "max_ongoing_requests=1000",
        "/-/healthz",
        variables,
    )
    with served(launch, folder / "ray") as ray:

        def size() -> int:
            return footprint([ray.running.pid])[1]

        before = size()
        with readings(size, 1.0) as sizes:
            seen = {part: ask(ray.running, trace, path="/") for part, trace in parts.items()}
    return seen, max(sizes) - before


if __name__ == "__main__":
    raise SystemExit(main())
