"""What an installation uses of TorchServe, with the state of each part here, and what to change."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.key import DEFAULT
from modelserver.models.settings.settings import KEYS
from modelserver.tools.archiver import BUILT_IN_HANDLERS, TORCHSERVE_HANDLERS
from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import Probe
from modelserver.tools.migrate.changes import MISSING
from modelserver.tools.migrate.installation import Installation
from modelserver.tools.migrate.tables import ENDPOINTS, KEYS_OF_TORCHSERVE, flag_state, key_state
from modelserver.tools.migrate.ts_names import ABSENT_STATE, SAME, names, offered

NO_EFFECT = "no effect"
UNKNOWN = "unknown"
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")  # of the guide


@dataclass(frozen=True, slots=True)
class UsedPart:
    """An endpoint, flag, key, handler or name that is used; ``where`` by what, or how often."""

    name: str
    state: str
    remark: str = ""
    where: str = ""


Usage: TypeAlias = "dict[str, list[UsedPart]]"
"""The parts by kind."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to change: why, and the commands that do it."""

    text: str
    commands: Sequence[str] = ()


def usage_of(installation: Installation, calls: Iterable[Probe], archives: Sequence[Archive]) -> Usage:
    """The parts of all kinds."""
    return {
        "endpoints": _endpoints(calls),
        "flags": [_flag(flag) for flag in installation.flags],
        "keys": _keys(installation),
        "handlers": [_handler(archive) for archive in archives],
        "ts_names": _ts_names(archives),
    }


def _endpoints(calls: Iterable[Probe]) -> list[UsedPart]:
    """In TorchServe's order; requests to no endpoint of its are left out."""
    # Literal paths are tried first, so that "all" is not taken for a version.
    patterns = [
        (each, _pattern(each.path)) for each in sorted(ENDPOINTS, key=lambda each: each.path.count("{"))
    ]
    counts: Counter[str] = Counter()
    for call in calls:
        path = call.path.partition("?")[0]
        method = "POST" if path.startswith("/predictions/") and call.method != "OPTIONS" else call.method
        for endpoint, pattern in patterns:
            if (endpoint.port, endpoint.method) == (call.port, method) and pattern.fullmatch(path):
                counts[f"{endpoint.port} {endpoint.method} {endpoint.path}"] += 1
                break
    parts, last = [], ""
    for each in ENDPOINTS:
        last = each.remark.replace("likewise", last)
        if counts[name := f"{each.port} {each.method} {each.path}"]:
            parts.append(UsedPart(name, each.verdict, _LINK.sub(r"\1", last), f"{counts[name]} requests"))
    return parts


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path).replace(r"\{rest\}", ".+")))


def _flag(flag: str) -> UsedPart:
    state, remark = flag_state(flag)
    return UsedPart(flag, state, _LINK.sub(r"\1", remark))


def _keys(installation: Installation) -> list[UsedPart]:
    """Lists the keys that are set anywhere: TorchServe's, and modelserver's own."""
    set_keys = {name: source for name, source in installation.loaded.sources.items() if source != DEFAULT}
    parts = []
    for name, source in set_keys.items():
        state = key_state(KEYS[name]) if name in KEYS_OF_TORCHSERVE else ("modelserver's own", "")
        parts.append(UsedPart(name, *state, where=source))
    for warning in installation.loaded.warnings:
        name, _, rest = warning.partition(" ")
        if "is not a known setting" in rest:
            parts.append(UsedPart(name, UNKNOWN, rest, str(installation.config)))
    return parts


def _handler(archive: Archive) -> UsedPart:
    handler = archive.handler
    if handler in BUILT_IN_HANDLERS:
        return UsedPart(handler, SAME, "built in", archive.url)
    if handler in TORCHSERVE_HANDLERS:
        return UsedPart(handler, ABSENT_STATE, "built into TorchServe only", archive.url)
    return UsedPart(handler, SAME, "the archive's own", archive.url)


def _ts_names(archives: Sequence[Archive]) -> list[UsedPart]:
    table = {entry.name: entry for entry in names()}
    here = {name.rpartition(".")[0] for name in offered()}
    packages = {module.rpartition(".")[0] for module in here} | {"ts"}
    parts: dict[str, UsedPart] = {}
    for archive in archives:
        for name, place in archive.ts_names.items():
            module = name.rpartition(".")[0]
            if (listed := table.get(name) or table.get(module)) is not None:
                state, remark = listed.state, listed.remark
            elif name in here or name in packages or (module in here and module != "ts"):
                state, remark = SAME, ""  # a module, or a name that it imports from another
            else:
                state, remark = ABSENT_STATE, "not a public name of TorchServe 0.12.0"
            parts.setdefault(name, UsedPart(name, state, remark, f"{archive.url}: {place}"))
    return [parts[name] for name in sorted(parts)]


def advice_on(installation: Installation, usage: Usage, archives: Sequence[Archive]) -> list[Advice]:
    """What to change before the switch, the command that starts the server last."""
    return [
        *_split_bodies(installation, archives),
        *_keys_without_effect(installation, usage["keys"]),
        *(
            Advice(f"{part.name}, which {part.where} uses, is not here: {part.remark}.")
            for part in (*usage["ts_names"], *usage["handlers"])
            if part.state == ABSENT_STATE
        ),
        *(
            Advice(f"Leave out the flag {part.name}, which has no effect: {part.remark}.")
            for part in usage["flags"]
            if part.state == NO_EFFECT
        ),
        Advice("Start modelserver in TorchServe's place.", [_start(installation)]),
    ]


def _split_bodies(installation: Installation, archives: Sequence[Archive]) -> Iterator[Advice]:
    """For handlers that read whole bodies of V1 themselves, where the server would split them."""
    if installation.loaded.settings.split_instances == "false":
        return
    reading = [archive for archive in archives if "instances" in archive.places and _may_split(archive)]
    if reading:
        where = ", ".join(f"{archive.url} ({archive.places['instances']})" for archive in reading)
        yield Advice(
            f"Handlers that read `instances` from the body of V1 requests get single instances: {where}. "
            "Let bodies through whole, for all models in the configuration, or for one with "
            "`splitInstances: false` in its model-config.yaml.",
            [f"echo split_instances=false >> {shlex.quote(str(installation.config))}"],
        )


def _may_split(archive: Archive) -> bool:
    if archive.config_text is None:
        return True
    config, _ = parse_model_config(archive.config_text)
    return str(config.split_instances).lower() != "false"


def _keys_without_effect(installation: Installation, keys: Iterable[UsedPart]) -> Iterator[Advice]:
    file, silent = str(installation.loaded.config_file), {NO_EFFECT, MISSING, UNKNOWN}
    names = [part.name for part in keys if part.state in silent and part.where == file]
    if names:
        pattern = "|".join(map(re.escape, names))
        yield Advice(
            f"Remove settings that have no effect here: {', '.join(names)}.",
            [f"sed -i -E {shlex.quote(f'/^ *({pattern}) *[=:]/d')} {shlex.quote(file)}"],
        )


def _start(installation: Installation) -> str:
    sources = installation.loaded.sources
    words = ["modelserver", "--start", "--ts-config", str(installation.config)]
    if sources["model_store"] != str(installation.loaded.config_file):
        words += ["--model-store", str(installation.store)]
    if sources["load_models"].startswith("flag"):
        words += ["--models", *map(str, installation.loaded.settings.load_models)]
    return shlex.join(words)
