"""``modelserver migrate``: the command line and the files that it writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from modelserver.errors import ConfigError
from modelserver.models.settings.key import OWN, TORCHSERVE
from modelserver.tools.commands import exit_status, termination_is_interruption
from modelserver.tools.migrate.calls import MigrationError, Port, Probe
from modelserver.tools.migrate.installation import (
    Installation,
    launch_modelserver,
    launch_torchserve,
    read_installation,
)
from modelserver.tools.migrate.proof import UNKNOWN, Proof, ProofPlan, prove
from modelserver.tools.migrate.report import as_html, as_json, summary
from modelserver.tools.migrate.requests import BUILT_IN, requests_of
from modelserver.tools.migrate.servers import Address, ComparedServer, running_server, started
from modelserver.tools.tune.machine import machine_facts, others_percent
from modelserver.tools.tune.progress import progressing

REPORT, RESULTS = "report.html", "report.json"
_OTHERS: tuple[Port, ...] = ("management", "metrics", "grpc_inference", "grpc_management")
LOAD = 3.0  # seconds of load on a TorchServe that is started for the comparison


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if every difference has a known reason, 1 if one has not, 2 if nothing could be compared,
    130 if interrupted.
    """
    options = build_parser().parse_args(arguments)

    def run() -> int:
        folder = tempfile.TemporaryDirectory(prefix="modelserver-migrate-")
        with termination_is_interruption(), folder as path:
            return migrate(options, Path(path))

    failures = {ConfigError: 2, MigrationError: 2}
    return exit_status(run, failures, "Interrupted: what was started was stopped, nothing was written.")


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver migrate",
        description="Sends the same requests to TorchServe and to a modelserver with the same configuration, "
        "and reports every difference with its reason. No request changes a running TorchServe.",
        epilog="Exit status: 0 if every difference has a known reason, 1 if one has not, 2 if nothing could "
        "be compared.",
    )
    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="TorchServe's config.properties")
    add("--prove", action="store_true", help="send the requests and compare (the default)")
    add(
        "--torchserve",
        metavar="URL|COMMAND",
        required=True,
        help="the inference address of a running TorchServe, or the command that starts one (torchserve, "
        "with any flags of its own)",
    )
    for port in _OTHERS:
        flag, what = _flag(port), port.replace("grpc_", "gRPC ")
        add(flag, metavar="URL", help=f"its {what} address (default: the port of CONFIG)")
    add(
        "--key-file",
        metavar="FILE",
        type=Path,
        help="key_file.json of a running TorchServe that wants tokens",
    )
    add(
        "--requests",
        metavar="WHAT",
        default=BUILT_IN,
        help="builtin (default), a folder with MODEL/NAME.EXT files and requests.json, or a recording (.msr)",
    )
    add("--model-store", metavar="DIR", help="if neither CONFIG nor COMMAND has one")
    add("--models", nargs="+", metavar="[NAME=]ARCHIVE", help="models to load, or all, if CONFIG has none")
    add("--compat-defaults", choices=(OWN, TORCHSERVE), help="whose defaults modelserver takes")
    add(
        "--seconds",
        metavar="S",
        type=float,
        help=f"of load on each model (default: {LOAD:g} with COMMAND, none with URL)",
    )
    add("--out", metavar="DIR", type=Path, default=Path("migration"), help="output (default: ./migration)")
    return parser


def migrate(options: argparse.Namespace, folder: Path) -> int:
    """Compares and writes; returns the exit status. Raises ConfigError, MigrationError."""
    running = options.torchserve.startswith(("http://", "https://"))
    flags = {
        "model_store": options.model_store,
        "load_models": options.models,
        "compat_defaults": options.compat_defaults,
    }
    command = None if running else options.torchserve
    installation = read_installation(options.config, command, flags, os.environ)
    _check_out(options.out)
    seconds = options.seconds if options.seconds is not None else (0.0 if running else LOAD)
    if not 0 <= seconds < math.inf:
        raise MigrationError(f"--seconds={seconds:g}: a number of at least 0 is needed")
    if options.requests != BUILT_IN:
        requests_of(options.requests, (), None)  # what is wrong with them is said before anything is started
    others = others_percent()
    with progressing() as listener, contextlib.ExitStack() as stack:
        listener.stage("starting")
        listener.trying("TorchServe", 0.0)
        reference = stack.enter_context(_reference_server(options, installation, folder, running=running))
        listener.trying("modelserver", 0.5)
        ours = stack.enter_context(
            started(launch_modelserver(installation, folder / "modelserver", follows=running))
        )
        workdir = folder / "archives"
        plan = ProofPlan(installation, reference, ours, options.requests, seconds, running, workdir)
        proof = prove(plan, listener)
        facts = _facts(proof, reference, others)
    for path in write(options.out, proof, facts, str(installation.config)):
        print(f"wrote {path}")
    print("\n".join(summary(proof)))
    return 1 if proof.verdict == UNKNOWN else 0


def _check_out(out: Path) -> None:
    """Raises MigrationError for a folder that cannot be written, which would be said after minutes only."""
    if out.exists() and not out.is_dir():
        raise MigrationError(f"--out={out}: a directory is needed")
    there = next(each for each in (out, *out.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise MigrationError(f"--out={out}: nothing can be written in {there}")


def _reference_server(
    options: argparse.Namespace, installation: Installation, folder: Path, *, running: bool
) -> contextlib.AbstractContextManager[ComparedServer]:
    if not running:
        return started(launch_torchserve(installation, folder / "torchserve"))
    inference = _address(options.torchserve, "--torchserve")
    addresses: dict[Port, Address] = {"inference": inference, **installation.grpc_addresses(inference[0])}
    for port in _OTHERS:
        if url := getattr(options, f"torchserve_{port}"):
            addresses[port] = _address(url, _flag(port))
        elif not port.startswith("grpc_"):
            addresses[port] = installation.address(port, inference[0])
    return contextlib.nullcontext(running_server("TorchServe", addresses, _tokens(options.key_file)))


def _flag(port: Port) -> str:
    return f"--torchserve-{port.replace('_', '-')}"


def _address(url: str, flag: str) -> Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise MigrationError(f"{flag}={url}: {error}") from error
    if parts.scheme != "http" or not host:
        raise MigrationError(f"{flag}={url}: an address such as http://127.0.0.1:8080 is needed")
    return host, port


def _tokens(path: Path | None) -> dict[str, str]:
    """The tokens in a key file, by port. Raises MigrationError."""
    if path is None:
        return {}
    try:
        keys = json.loads(path.read_bytes())
        ports: tuple[Port, ...] = ("inference", "management")
        return {port: str(keys[port]["key"]) for port in ports}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MigrationError(
            f"--key-file={path}: it is no key_file.json of TorchServe ({error!r})"
        ) from error


def _facts(proof: Proof, reference: ComparedServer, others: float) -> dict[str, str]:
    """Facts about the machine, and TorchServe's version if it reports one."""
    described = {"workers": [{"gpu": any(each.version.gpu for each in proof.subjects)}]}
    answer = reference.ask(Probe("", "management", "OPTIONS", "/"))
    try:
        info = str(json.loads(answer.body or b"")["info"]["version"])
    except (ValueError, KeyError, TypeError):
        info = "of unknown version"
    return {**machine_facts(described, others), "TorchServe": info}


def write(out: Path, proof: Proof, facts: dict[str, str], config: str) -> list[Path]:
    """Writes both reports; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    texts = {REPORT: as_html(proof, facts, config), RESULTS: as_json(proof, facts, config)}
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")
    return [out / name for name in texts]
