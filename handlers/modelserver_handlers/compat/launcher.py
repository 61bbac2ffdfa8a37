"""Starting and stopping a server from Python (reference 13, ``ts.launcher``).

Each function runs the command ``modelserver`` or asks the management API at its usual address,
http://localhost:8081; the server keeps running when the program ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

_COMMAND = (sys.executable, "-m", "modelserver")
_MANAGEMENT = "http://localhost:8081"


def run_command() -> NoReturn:
    """Replace this process by ``modelserver``, with the same arguments."""
    sys.stdout.flush()
    os.execv(sys.executable, [*_COMMAND, *sys.argv[1:]])  # noqa: S606 - a program of ours


def run_llm_command() -> NoReturn:
    """Replace this process by ``modelserver llm``, with the same arguments."""
    sys.stdout.flush()
    os.execv(sys.executable, [*_COMMAND, "llm", *sys.argv[1:]])  # noqa: S606 - a program of ours


def start(  # noqa: PLR0917 - TorchServe's signature
    model_store: str | None = None,
    snapshot_file: str | None = None,
    no_config_snapshots: bool = False,
    plugin_folder: str | None = None,
    disable_token: bool = False,
    models: str | None = None,
    enable_model_api: bool = False,
) -> None:
    """Start a server and return when it listens; ``plugin_folder`` only causes a warning.

    Raises subprocess.CalledProcessError if it does not start; the reason is on standard error.
    """
    flags = {
        "--model-store": model_store,
        "--ts-config": snapshot_file,
        "--models": models,
        "--plugins-path": plugin_folder,
    }
    switches = {
        "--ncs": no_config_snapshots,
        "--disable-token-auth": disable_token,
        "--enable-model-api": enable_model_api,
    }
    arguments = [part for flag, value in flags.items() if value for part in (flag, value)]
    _run("--start", *arguments, *(flag for flag, is_on in switches.items() if is_on))


def stop(wait: bool = True) -> None:
    """Stop the server, and return when it has stopped."""
    _run("--stop")


def register_model(model_name: str, url: str) -> tuple[int, Any]:
    """Register an archive with one worker; returns the status and the answer."""
    return register_model_with_params(
        {"model_name": model_name, "url": url, "initial_workers": "1", "synchronous": "true"}
    )


def register_model_with_params(params: Mapping[str, Any]) -> tuple[int, Any]:
    """Register an archive with these parameters of the management API; returns the status and the answer."""
    request = Request(f"{_MANAGEMENT}/models?{urlencode(params)}", method="POST")  # noqa: S310 - our own server
    try:
        with urlopen(request) as answer:  # noqa: S310 - our own server
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def _run(*arguments: str) -> None:
    subprocess.run([*_COMMAND, *arguments], check=True)  # noqa: S603 - a program of ours
