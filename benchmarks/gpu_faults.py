"""What goes wrong with GPUs, done to a real server: what it answers then and later, and the GPU's memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import gpu
from benchmarks.archives import photograph
from benchmarks.gpu_utilisation import used_mib
from benchmarks.load import run_load
from benchmarks.servers import BenchmarkError, ModelServer, call, model_server, running_first
from modelserver.engine.telemetry.gpus import gpus
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    Outcome = tuple[bool, dict[str, object]]

ROWS = 8
GOOD = 20
BACK_SECONDS = 60.0  # in which a worker must be back
MAX_MIB = 512  # more of the GPU's memory than before may be in use afterwards
# Rows are "PLACE MIB": a place beyond the table fails an assertion on the device, and memory is allocated for
# all rows of a batch.
HANDLER = """
import torch

class Table:
    def initialize(self, context):
        gpu = context.system_properties.get("gpu_id")
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        self.table = torch.arange(4, device=self.device)

    def handle(self, data, context):
        rows = [[int(number) for number in bytes(row["body"]).split()] for row in data]
        places, sizes = zip(*rows)
        room = torch.empty(sum(sizes) << 20, dtype=torch.uint8, device=self.device)
        return self.table[torch.tensor(places, device=self.device)].tolist()
"""
# In workers that are not forked, none of the GPUs that the server sees is there.
WITHOUT_GPU = """
import os, sys
if any(each.startswith("modelserver.engine.worker") for each in sys.orig_argv):
    os.environ["CUDA_VISIBLE_DEVICES"] = "9"
"""


def poisoned(options: argparse.Namespace) -> Outcome:
    """A request fails an assertion on the device: its worker is replaced, and later requests are answered."""
    with _table(options) as server:
        before = _facts(server, "table")
        bad = _ask(server, "9 0")
        back = _seconds_until(lambda: _ask(server, "1 0")[0] == 200)
        good = [_ask(server, "2 0") for _ in range(GOOD)]
        after = _facts(server, "table")
    passed = (
        bad[0] == 500 and back is not None and set(good) == {(200, "2")} and after["pid"] != before["pid"]
    )
    figures: dict[str, object] = {
        "answer": bad,
        "back after s": back,
        "good": good[-1],
        "before": before,
        "after": after,
    }
    return bool(passed) and _is_given_back(before, after), figures


def too_large(options: argparse.Namespace) -> Outcome:
    """A batch that does not fit is answered in parts, a row that does not fit alone 507; the worker stays."""
    gpus.read()
    memory = gpus.memory(0)
    total = (memory.free + memory.used) >> 20 if memory else ROWS
    with _table(options) as server:
        before = _facts(server, "table")
        with ThreadPoolExecutor(ROWS) as clients:
            batch = list(clients.map(partial(_ask, server), [f"1 {total // 6}"] * ROWS))
        alone = _ask(server, f"1 {2 * total}")
        good = [_ask(server, "2 0") for _ in range(GOOD)]
        after = _facts(server, "table")
    passed = set(batch) == {(200, "1")} and alone[0] == 507 and set(good) == {(200, "2")}
    figures: dict[str, object] = {
        "batch": batch,
        "alone": alone,
        "good": good[-1],
        "before": before,
        "after": after,
    }
    return passed and bool(after["pid"] == before["pid"]), figures


def killed(options: argparse.Namespace) -> Outcome:
    """A worker is killed under load: it is back in time, and its memory on the GPU was given back."""
    seconds = 3.0 if options.dry_run else 30.0
    backs: list[float | None] = []
    picture = photograph()
    served = gpu.parse(["--device", options.device, *(["--dry-run"] if options.dry_run else [])])
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        gpu.served(served, Path(folder), picture) as server,
    ):
        before = _facts(server, gpu.NAME)

        def kill() -> None:
            os.kill(int(str(before["pid"])), signal.SIGKILL)
            backs.append(_seconds_until(lambda: _is_replaced(server, before["pid"])))

        timer = threading.Timer(seconds / 5, kill)
        timer.start()
        outcome = run_load(gpu.load_of(server, picture, 32, seconds), "asyncio")
        timer.join()
        after = _facts(server, gpu.NAME)
        status, _ = call(server.port, "POST", f"/predictions/{gpu.NAME}", picture)
    figures: dict[str, object] = {"back after s": backs[0], "load": outcome, "before": before, "after": after}
    return backs[0] is not None and status == 200 and _is_given_back(before, after), figures


def no_gpu(options: argparse.Namespace) -> Outcome:
    """Without a visible GPU a server computes on the processor and says so; a worker that was assigned a GPU
    and cannot use it does not load.
    """
    picture, settings = photograph(), {"number_of_gpu": 0 if options.device == "cpu" else 1}
    served = gpu.parse(["--device", options.device, *(["--dry-run"] if options.dry_run else [])])
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        archive = gpu.build_model(folder / "store", gpu.settings_of(served))
        invisible = {"CUDA_VISIBLE_DEVICES": "9"}
        with model_server(folder / "store", folder / "blind", settings, variables=invisible) as server:
            server.register(archive, gpu.NAME)
            status, _ = call(server.port, "POST", f"/predictions/{gpu.NAME}", picture)
            figures["without"] = {"answer": status, **_facts(server, gpu.NAME)}
            output = (folder / "blind" / "output").read_text("utf-8", "replace").splitlines()
            figures["said"] = said = [line for line in output if "GPU" in line]
        with (
            running_first(folder, WITHOUT_GPU),
            model_server(folder / "store", folder / "lost", settings | {"worker_start": "spawn"}) as server,
        ):
            refused, why = _registered(server, archive, gpu.NAME)
            figures["lost"] = [refused, why]
    passed = status == 200 and bool(said) and refused != 200 and ("GPU" in why or "CUDA" in why)
    return passed, figures


def processor_pt2(options: argparse.Namespace) -> Outcome:
    """A network compiled ahead of time for the processor is served there, or refused in such words."""
    import torch  # noqa: PLC0415 - only this step needs it

    from modelserver_handlers.networks.compilation import finds_compiler  # noqa: PLC0415

    if not finds_compiler():
        raise gpu.Skipped("there is no C++ compiler")
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
    program = torch.export.export(network, (torch.zeros(1, 4),))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        store = Path(name) / "store"
        store.mkdir()
        file = store / "network.pt2"
        if options.dry_run:
            torch.export.save(program, file)
        else:
            torch._inductor.aoti_compile_and_package(program, package_path=str(file))
        config = ArchiveConfig(
            model_name="ahead", version="1.0", handler="base_handler", serialized_file=file, export_path=store
        )
        archive = build_archive(config).name
        with model_server(store, Path(name) / "server", gpu.gpu_settings(options.device)) as server:
            status, why = _registered(server, archive, "ahead")
            figures: dict[str, object] = {"registration": [status, why]}
            if status == 200:
                rows = json.dumps([0.0] * 4).encode()
                answered = call(
                    server.port, "POST", "/predictions/ahead", rows, content_type="application/json"
                )
                figures |= {"prediction": [answered[0], answered[1].decode()], **_facts(server, "ahead")}
                return answered[0] == 200, figures
    return "processor" in why or "CPU" in why, figures


FAULTS: dict[str, Callable[[argparse.Namespace], Outcome]] = {
    fault.__name__: fault for fault in (poisoned, too_large, killed, no_gpu, processor_pt2)
}


@contextlib.contextmanager
def _table(options: argparse.Namespace) -> Iterator[ModelServer]:
    """A server with the handler above, whose batches are complete with ROWS requests."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        store = Path(name) / "store"
        store.mkdir()
        (store / "table.py").write_text(HANDLER, "utf-8")
        config = ArchiveConfig(
            model_name="table", version="1.0", handler=str(store / "table.py"), export_path=store
        )
        archive = build_archive(config).name
        with model_server(store, Path(name) / "server", gpu.gpu_settings(options.device)) as server:
            server.register(archive, "table", batch_size=ROWS, max_batch_delay=100)
            if _ask(server, "1 1") != (200, "1"):
                raise BenchmarkError(f"table answers {_ask(server, '1 1')}")
            yield server


def _ask(server: ModelServer, row: str) -> tuple[int, str]:
    """Status and beginning of the answer."""
    status, answer = call(server.port, "POST", "/predictions/table", row.encode(), timeout=BACK_SECONDS)
    return status, answer.decode("utf-8", "replace")[:300]


def _registered(server: ModelServer, archive: str, name: str) -> tuple[int, str]:
    """Status and answer of a registration with a worker, or what its worker says where none comes in time."""
    target = f"/models?url={archive}&model_name={name}&initial_workers=1&synchronous=true"
    try:
        status, answer = call(server.management_port, "POST", target, timeout=BACK_SECONDS)
    except TimeoutError:
        return 0, str(gpu.described(server, name)["workers"])
    return status, answer.decode("utf-8", "replace")[:500]


def _facts(server: ModelServer, name: str) -> dict[str, Any]:
    """The model's worker, and the memory in use on the GPU."""
    worker = gpu.described(server, name)["workers"][0]
    return {**{key: worker[key] for key in ("pid", "status", "gpu")}, "MiB on the GPU": used_mib()}


def _is_given_back(before: dict[str, Any], after: dict[str, Any]) -> bool:
    key = "MiB on the GPU"
    return before[key] is None or after[key] is None or bool(after[key] < before[key] + MAX_MIB)


def _is_replaced(server: ModelServer, pid: int) -> bool:
    facts = _facts(server, gpu.NAME)
    return facts["pid"] not in {0, pid} and facts["status"] == "READY"


def _seconds_until(happened: Callable[[], bool]) -> float | None:
    """How long it took; None if it did not happen in time."""
    began = time.monotonic()
    while time.monotonic() - began < BACK_SECONDS:
        if happened():
            return time.monotonic() - began
        time.sleep(0.1)
    return None
