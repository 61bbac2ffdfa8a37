"""A TorchServe installation: its configuration and command, and how both servers are started with them."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from modelserver.errors import ConfigError
from modelserver.models.settings.load import LoadedSettings, load_settings, set_properties
from modelserver.run.readiness import STARTED_LINE
from modelserver.tools.migrate.calls import MigrationError, Port
from modelserver.tools.migrate.servers import Address, Launch
from modelserver.tools.migrate.tables import FLAGS, SHORT_FLAGS
from modelserver.tools.tune.client import HOST
from modelserver.tools.tune.own_server import free_ports, own_environment, server_command


@dataclass(frozen=True, slots=True)
class Installation:
    """``config`` as it was loaded, and TorchServe's ``command`` if one was given, in words."""

    config: Path
    loaded: LoadedSettings
    command: tuple[str, ...] = ()

    @property
    def store(self) -> Path:
        """The model store."""
        store = self.loaded.settings.local_store
        assert store is not None  # noqa: S101 - read_installation makes sure
        return store

    @property
    def flags(self) -> list[str]:
        """TorchServe's flags that its command has, by their long names."""
        words = (SHORT_FLAGS.get(word, word).partition("=")[0] for word in self.command)
        return list(dict.fromkeys(word for word in words if word in FLAGS))

    def grpc_addresses(self, host: str) -> dict[Port, Address]:
        """Where such a TorchServe serves gRPC; nothing if it does so over TLS, which is not compared."""
        settings = self.loaded.settings
        if settings.enable_grpc_ssl:
            return {}
        return {
            "grpc_inference": (host, settings.grpc_inference_port),
            "grpc_management": (host, settings.grpc_management_port),
        }

    def address(self, port: Port, host: str) -> Address:
        """Where a TorchServe on ``host`` with this configuration listens.

        Raises MigrationError unless by plain HTTP.
        """
        address = getattr(self.loaded.settings, f"{port}_address")
        if address.scheme != "http":
            raise MigrationError(f"{port}_address={address}: a plain HTTP address is needed to compare")
        return host, address.port


def read_installation(
    config: Path, command: str | None, flags: Mapping[str, object], environ: Mapping[str, str]
) -> Installation:
    """Reads ``config`` as the server would, whatever ``TS_CONFIG_FILE`` says; flags in the command count too.

    Raises ConfigError, also if there is no model store; MigrationError for a command that is none.
    """
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise MigrationError(f"--torchserve={command}: {error}") from error
    if command is not None and not words:
        raise MigrationError("--torchserve: a URL or a command is needed")
    settings = _flags_of(words)
    variables = {name: value for name, value in environ.items() if name != "TS_CONFIG_FILE"}
    loaded = load_settings({**settings, **flags, "ts_config": str(config)}, variables, Path.cwd())
    if loaded.settings.local_store is None:
        raise ConfigError(f"{config} has no model_store on this machine: --model-store is needed")
    return Installation(config.absolute(), loaded, words)


def _flags_of(words: Sequence[str]) -> dict[str, object]:
    """The settings in TorchServe's command line, by their names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-store")
    parser.add_argument("--models", nargs="+")
    known, _ = parser.parse_known_args(words)
    models = ",".join(known.models) if known.models else None
    return {
        name: value for name, value in (("model_store", known.model_store), ("load_models", models)) if value
    }


def launch_modelserver(installation: Installation, folder: Path, *, follows: bool = False) -> Launch:
    """modelserver with the same configuration, on ports and in a folder of its own.

    ``follows``: it will be told what a running TorchServe was told since its start.
    """
    addresses = own_addresses()
    api = {"enable_model_api": "true"} if follows else {}
    config = _configuration(installation, folder, addresses, {"enable_grpc_api": "true"} | api)
    command, environment = server_command(config), own_environment(os.environ) | _folders(folder)
    return Launch("modelserver", command, addresses, folder, environment, folder / "output", STARTED_LINE)


def launch_torchserve(installation: Installation, folder: Path) -> Launch:
    """TorchServe by its command, with a changed copy of the configuration.

    The workers find the Python that lies beside the program, as in an activated environment. Raises
    MigrationError if there is no such program.
    """
    program = shutil.which(installation.command[0])
    if program is None:
        raise MigrationError(f"--torchserve: there is no program {installation.command[0]}")
    addresses = own_addresses()
    config = _configuration(installation, folder, addresses, {})
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ts-config")
    _, words = parser.parse_known_args(installation.command[1:])
    needed = [flag for flag in ("--start", "--foreground", "--ncs") if flag not in words]
    command = [program, *words, *needed, "--ts-config", str(config)]
    if "--model-store" not in words:
        command += ["--model-store", str(installation.store)]
    environment = own_environment(os.environ) | _folders(folder)
    beside = Path(program).parent
    if (beside / "python").exists():
        environment["PATH"] = f"{beside}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return Launch("TorchServe", command, addresses, Path.cwd(), environment, folder / "output", whole=True)


def own_addresses() -> dict[Port, Address]:
    """Free ones."""
    ports: tuple[Port, ...] = get_args(Port)
    return {port: (HOST, number) for port, number in zip(ports, free_ports(len(ports)), strict=True)}


def _folders(folder: Path) -> dict[str, str]:
    """Where a server writes: nothing of the running one is touched."""
    temp = folder / "tmp"
    temp.mkdir()
    logs = str(folder / "logs")
    return {"TMPDIR": str(temp), "TEMP": str(temp), "LOG_LOCATION": logs, "METRICS_LOCATION": logs}


def _configuration(
    installation: Installation, folder: Path, addresses: Mapping[Port, Address], extra: Mapping[str, str]
) -> Path:
    """The configuration with paths made absolute, what flags and environment said, and other addresses."""
    folder.mkdir()
    own = {"enable_grpc_ssl": "false"}
    for port, (host, number) in addresses.items():
        if port.startswith("grpc_"):
            own |= {f"{port}_address": host, f"{port}_port": str(number)}
        else:
            own[f"{port}_address"] = f"http://{host}:{number}"
    lines = {
        **set_properties(installation.loaded),
        **own,
        **extra,
        "enable_envvars_config": "false",
        "disable_token_authorization": "true",
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    config = folder / "config.properties"
    original = installation.loaded.config_file
    config.write_bytes((original.read_bytes() + b"\n" if original is not None else b"") + text.encode())
    return config
