"""What both servers are asked, in chapters that leave nothing behind.

The calls of a chapter stand in ``recorded/NAME.json`` beside TorchServe's answers: an entry without an answer
is a new call, which ``python -m tests.differential.record`` sends. ``chapters.yaml`` names the chapters.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from tests.differential.configurations import table_settings

from modelserver.tools.migrate.calls import Probe, digest

HERE: Final = Path(__file__).parent

SERVERS: Final[dict[str, dict[str, str]]] = {
    "open": {"enable_model_api": "true"},
    "closed": {"enable_model_api": "false"},
    "workflows": {"enable_model_api": "true", "unregister_model_timeout": "5"},
    "tabled": table_settings(),
    "undecoded": {"enable_model_api": "true", "decode_input_request": "false"},
    "measured": {
        "enable_model_api": "true",
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
    },
    **{
        name: {"enable_model_api": "true", "service_envelope": name}
        for name in ("body", "json", "kserve", "kservev2")
    },
}
"""Servers by name, with what their configurations say besides."""
SETTINGS: Final = {
    "disable_token_authorization": "true",
    "max_request_size": "100000",
    "install_py_dep_per_model": "false",
    "job_queue_size": "100",
}
"""Of both servers; the rest are their defaults."""


@dataclass(frozen=True, slots=True)
class Together:
    """Calls that are sent at the same time, to be answered as one batch."""

    calls: tuple[Probe, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Waits until a model has this many workers, all of them ready."""

    model: str
    workers: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits until what workers have printed is read."""

    seconds: float = 0.5


Step = Probe | Together | Settle | Pause


@dataclass(frozen=True, slots=True)
class Chapter:
    """Steps that belong together, and the server of :data:`SERVERS` that is asked.

    ``plain``: quick enough for every run of the tests.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    server: str = "open"
    plain: bool = True

    @property
    def calls(self) -> list[Probe]:
        calls: list[Probe] = []
        for step in self.steps:
            if isinstance(step, Together):
                calls += step.calls
            elif isinstance(step, Probe):
                calls.append(step)
        return calls


@cache
def chapters() -> tuple[Chapter, ...]:
    table = yaml.safe_load((HERE / "chapters.yaml").read_text("utf-8"))
    return tuple(_chapter(name, **plan) for name, plan in table.items())


def _chapter(
    name: str,
    title: str,
    server: str = "open",
    plain: bool = True,
    before: Mapping[str, Any] | None = None,
    together: list[list[str]] | None = None,
) -> Chapter:
    entries = json.loads((HERE / "recorded" / f"{name}.json").read_text("utf-8"))
    calls = {entry["name"]: entry["request"] for entry in entries}
    assert len(calls) == len(entries), name
    steps = tuple(_steps(name, calls, before or {}, together or []))
    return Chapter(name, title, steps, server, plain)


def _steps(
    chapter: str, requests: Mapping[str, Any], before: Mapping[str, Any], together: list[list[str]]
) -> Iterator[Step]:
    calls = {name: _call(chapter, name, requests) for name in requests}
    groups = {names[0]: names for names in together}
    followers = {name for names in together for name in names[1:]}
    assert {*before, *groups, *followers} <= set(calls), chapter
    for name, call in calls.items():
        if name in before:
            yield Pause() if before[name] == "pause" else Settle(*before[name])
        if name in groups:
            yield Together(tuple(calls[each] for each in groups[name]))
        elif name not in followers:
            yield call


def _call(chapter: str, name: str, requests: Mapping[str, Any]) -> Probe:
    request = requests[name]
    body = request["body"]
    if isinstance(body, str):
        content = body.encode()
    elif "base64" in body:
        content = base64.b64decode(body["base64"])
    else:
        content = _LARGE[f"{chapter}/{name}"](requests)
        assert digest(content) == body, name
    headers = tuple((key, value) for key, value in request["headers"])
    return Probe(name, request["port"], request["method"], request["path"], headers, content)


def _bitmap(_: Mapping[str, Any]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (100, 100), (255, 0, 0)).save(file, "BMP")
    return file.getvalue()


def _pair_of_pictures(requests: Mapping[str, Any]) -> bytes:
    return json.dumps({"instances": [{"b64": requests["tiny_named red"]["body"]["base64"]}] * 2}).encode()


_LARGE: Final = {
    "pictures/bitmap": _bitmap,
    "pictures/v1 base64": _pair_of_pictures,
    "routes/too large": lambda _: b"x" * 100_001,
    "routes/as large as can be": lambda _: b"x" * 100_000,
}
"""Bodies of which a recording has only the length and a hash."""


def recording_of(chapter: Chapter, answers: dict[str, Any]) -> list[dict[str, Any]]:
    """What is written for a chapter: each call with its answer."""
    return [
        {"name": call.name, "request": call.to_json(), "answer": answers[call.name].to_json()}
        for call in chapter.calls
    ]
