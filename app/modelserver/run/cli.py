"""TorchServe's flags, and the server that they describe, in this process (reference 2)."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.models.settings.key import OWN, TORCHSERVE, Key, Kind
from modelserver.models.settings.load import LoadedSettings, explain, load_settings
from modelserver.models.settings.settings import BATCHER, KEYS, PAYLOADS, Settings
from modelserver.models.settings.sources import named_config_file
from modelserver.run.pidfile import address_file, own_pid_file, pid_file
from modelserver.run.readiness import Readiness, print_line
from modelserver.surface.auth.policy import notice

if TYPE_CHECKING:
    from modelserver.engine.telemetry.logs import Logs
    from modelserver.extension import ExtensionRow

ALREADY_RUNNING = "modelserver is already running, please use modelserver --stop to stop modelserver."

_NO_EFFECT = "accepted for compatibility, without effect"

# Flags for features that only TorchServe has.
_WITHOUT_MEANING = {
    "cpp_log_config": "--cpp-log-config configures TorchServe's C++ backend",
    "plugins_path": "--plugins-path names plugins for a Java server",
}


def build_parser(epilog: str = "") -> argparse.ArgumentParser:
    """TorchServe's flags (reference 2) and ours; ``epilog`` ends the help."""
    parser = argparse.ArgumentParser(
        "modelserver",
        description="Serves PyTorch models over HTTP.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    action.add_argument("--start", action="store_true", help="start the server (also without this flag)")
    action.add_argument("--stop", action="store_true", help="stop the running server")
    add = parser.add_argument
    _add_flags(add)
    add_agent_flags(parser)
    add("--print-settings", action="store_true", help="print all settings and their sources at the start")
    add("--ready-fd", type=int, help=argparse.SUPPRESS)
    add("--known-as", help=argparse.SUPPRESS)
    return parser


def _add_flags(add: Callable[..., argparse.Action]) -> None:
    store, turns_on = "directory of model archives; needed here or in the configuration", "store_true"
    defaults = "whose defaults apply to what is not set: modelserver's or torchserve's"
    collected = "what is sent to an OpenTelemetry collector: off, traces, metrics or all"
    compat, otel = (OWN, TORCHSERVE), KEYS["otel"].choices
    no_tokens, models = "disable_token_authorization", "models to load at start, or all"
    add("--ts-config", metavar="FILE", help="configuration file (config.properties)")
    add("--model-store", metavar="DIR", help=store)
    add("--workflow-store", metavar="DIR", help="folder of workflow archives; by default the model store")
    add("--models", dest="load_models", nargs="+", metavar="[NAME=]ARCHIVE", help=models)
    add("--load", metavar="WHEN", choices=KEYS["load"].choices, help="start workers at-start, or on-demand")
    add("--log-config", metavar="FILE", help="logging configuration of Python (.json, .yaml or .ini)")
    add("--cpp-log-config", metavar="FILE", help=_NO_EFFECT)
    add("--foreground", action=turns_on, help="stay in the foreground; with --stop: wait for the end")
    add("--wait", action=turns_on, help="return when all models have loaded; status 1 if one has not")
    add("--no-config-snapshots", "--ncs", action=turns_on, help="neither write nor restore snapshots")
    add("--plugins-path", "--ppath", metavar="DIR", help=_NO_EFFECT)
    add("--disable-token-auth", "--dt", dest=no_tokens, action=turns_on, help="require no tokens")
    add("--enable-model-api", action=turns_on, help="allow models to be registered and unregistered")
    add("--compat-defaults", metavar="WHOSE", choices=compat, help=defaults)
    add("--otel", metavar="WHAT", choices=otel, help=collected)


def add_agent_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of KServe's agent for its batcher and its payload logger (kserve reference 1.7 and 10)."""
    group = parser.add_argument_group("flags of KServe's agent")
    for key in agent_keys():
        switch = {"nargs": "?", "const": "true"} if key.kind is Kind.BOOLEAN else {}
        group.add_argument(str(key.flag), dest=key.name, metavar="VALUE", help=key.summary, **switch)  # type: ignore[arg-type]  # the keywords of switches


def agent_keys() -> list[Key]:
    """The settings that these flags set."""
    return [key for key in KEYS.values() if key.flag is not None and key.group in (BATCHER, PAYLOADS)]


def check(options: argparse.Namespace, extensions: Mapping[str, ExtensionRow]) -> LoadedSettings:
    """The settings, after the checks of reference 2.1. Raises ConfigError with the message to print."""
    if options.log_config and not Path(options.log_config).is_file():
        raise ConfigError(f"--log-config file not found: {Path(options.log_config).absolute()}")
    temp = os.environ.get("TEMP")
    if temp and not Path(temp).is_dir():
        raise ConfigError(f"Invalid temp directory: {temp}, please check TEMP environment variable.")
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise ConfigError(
            f"{error.strerror}: one must be writable, "
            "in a read-only container a volume at /tmp (--tmpfs /tmp:exec)."
        ) from None
    loaded = load(setting_flags(options), {} if options.no_config_snapshots else extensions)
    if loaded.settings.model_store is None:
        raise ConfigError("Missing mandatory parameter --model-store")
    return loaded


def load(flags: dict[str, object], extensions: Mapping[str, ExtensionRow]) -> LoadedSettings:
    """The settings; with TorchServe's defaults and no named file, those that an extension has.

    Raises ConfigError with the message to print.
    """
    loaded = load_settings(flags, os.environ, Path.cwd())
    if not loaded.settings.as_torchserve or named_config_file(flags, os.environ):
        return loaded
    # Imported only if needed, so that other commands start fast.
    from modelserver.engine.telemetry.logs import log_directories  # noqa: PLC0415

    folder = log_directories()[0] / "config"
    file = next(filter(None, (row.configuration(folder) for row in extensions.values())), None)
    if file is None:
        return loaded
    named = {**flags, "ts_config": str(file), "compat_defaults": TORCHSERVE}
    return load_settings(named, os.environ, Path.cwd())


def setting_flags(options: argparse.Namespace) -> dict[str, object]:
    """The flags by the names of their settings."""
    names = [key.name for key in KEYS.values() if key.flag is not None and key.name not in _WITHOUT_MEANING]
    return {"ts_config": options.ts_config, **{name: getattr(options, name) for name in names}}


def serve(
    options: argparse.Namespace,
    loaded: LoadedSettings,
    readiness: Readiness,
    extensions: Mapping[str, ExtensionRow],
) -> int:
    """Runs the server in this process until it is stopped."""
    # Imported here so that other commands start fast, and without garbage collection, which would take a
    # tenth of the time.
    gc.disable()
    import uvloop  # noqa: PLC0415

    from modelserver.run.server import Reports, Server  # noqa: PLC0415

    gc.enable()

    print_start(options, loaded, readiness.print)
    log_dir, logs = open_logs(options, loaded.settings)
    snapshots = loaded.settings.snapshot_folder or log_dir / "config"

    async def run() -> None:
        # In the foreground the log has the notices.
        notice = (lambda _: None) if options.foreground else print_line
        await Server(
            loaded,
            Reports(readiness.started, readiness.progress, notice),
            stamped_log=logs.stamped,
            snapshots=None if options.no_config_snapshots else snapshots,
            wait=options.wait and not options.foreground,
            extensions=extensions,
        ).run()

    try:
        with own_pid_file(pid_file()), published_address(loaded.settings):
            uvloop.run(run())
    except FileExistsError:
        return readiness.failed(ALREADY_RUNNING)
    except ConfigError as error:
        return readiness.failed(str(error))
    finally:
        logs.close()
    return 0


def open_logs(options: argparse.Namespace, settings: Settings) -> tuple[Path, Logs]:
    """The folder of the log, and its handlers."""
    from modelserver.engine.telemetry.logs import log_directories, setup_logging  # noqa: PLC0415

    folder, metrics_folder = log_directories()
    logs = setup_logging(
        folder,
        metrics_dir=metrics_folder,
        files=settings.log_files,
        console=options.foreground,
        log_config=Path(options.log_config) if options.log_config else None,
        as_json=settings.log_format == "json",
        in_background=settings.async_logging,
    )
    return folder, logs


@contextlib.contextmanager
def published_address(settings: Settings) -> Iterator[None]:
    """Meanwhile a file has the address for the health check: reading the settings would take 0.8 s."""
    file = address_file()
    address = {
        "inference": str(settings.inference_address),
        "asks_for_certificates": settings.tls_client_ca_file is not None,
    }
    try:
        with contextlib.suppress(OSError):
            file.write_text(json.dumps(address), "utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def print_start(
    options: argparse.Namespace, loaded: LoadedSettings, show: Callable[[str], None] = print_line
) -> None:
    """Prints the warnings, and the settings if requested."""
    for flag, reason in _WITHOUT_MEANING.items():
        if getattr(options, flag):
            show(f"Warning: {reason}; it has no effect here.")
    for warning in loaded.warnings:
        show(f"Warning: {warning}")
    if loaded.settings.as_torchserve:
        show(f"Defaults: TorchServe's ({loaded.sources['compat_defaults']})")
    # In the foreground the log has these.
    for line in () if options.foreground else notice(loaded.settings, os.environ, Path.cwd()):
        show(line)
    if options.print_settings or os.environ.get("MODELSERVER_PRINT_SETTINGS") == "1":
        show(explain(loaded))


def print_json(text: str) -> None:
    """Prints a line as the log does with ``log_format=json``."""
    from modelserver.engine.telemetry.logs import json_line  # noqa: PLC0415 - needed by few

    print_line(json_line(text))
