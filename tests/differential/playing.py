"""Plays a chapter on a server and takes away what it leaves."""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from tests.differential.chapters import Chapter, Pause, Settle, Together

from modelserver.tools.migrate.calls import Probe, Response, send

SETTLED = 30.0  # seconds until workers must be ready
TORCHSERVES_ROLLBACK = 0.5


def play(
    chapter: Chapter, addresses: Mapping[str, tuple[str, int]], rollback: float = 0.0
) -> dict[str, Response]:
    """The answers by name; at the end no model is registered.

    ``rollback``: seconds in which the server takes back a registration that it has answered with a failure.
    """
    answers: dict[str, Response] = {}
    for step in chapter.steps:
        if isinstance(step, Settle):
            settle(step, addresses, rollback)
        elif isinstance(step, Pause):
            time.sleep(step.seconds)
        elif isinstance(step, Together):
            with ThreadPoolExecutor(len(step.calls)) as pool:
                result = pool.map(lambda call: send(call, addresses[call.port]), step.calls)
                answers |= dict(zip((call.name for call in step.calls), result, strict=True))
        else:
            answers[step.name] = send(step, addresses[step.port])
    clear(addresses)
    return answers


def settle(step: Settle, addresses: Mapping[str, tuple[str, int]], rollback: float) -> None:
    """Waits for the workers; with -1 for a failed registration to be rolled back, if it ever is."""
    path = f"/models/{step.model}"
    if step.workers < 0:
        time.sleep(rollback)
        return
    deadline = time.monotonic() + SETTLED
    while time.monotonic() < deadline:
        described = _management("GET", path, addresses)
        workers = [worker["status"] for worker in described[0]["workers"]] if described else []
        if workers == ["READY"] * step.workers:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {step.workers} workers")


def clear(addresses: Mapping[str, tuple[str, int]]) -> None:
    """Unregisters what is there, the default versions last."""
    for model in (_management("GET", "/models", addresses) or {"models": []})["models"]:
        path = f"/models/{quote(model['modelName'], safe='')}"
        default = _management("GET", path, addresses)[0]["modelVersion"]
        others = [version["modelVersion"] for version in _management("GET", f"{path}/all", addresses)]
        for version in sorted(others, key=lambda version: version == default):
            _management("DELETE", f"{path}/{quote(version, safe='')}", addresses)


def _management(method: str, path: str, addresses: Mapping[str, tuple[str, int]]) -> Any:
    answer = send(Probe("", "management", method, path), addresses["management"])
    return json.loads(answer.body or b"null") if answer.status == 200 else None
