"""Plays the chapters on modelserver and prints what is not as recorded and not explained.

python -m tests.differential.replay [chapter ...]
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.differential.archives import HERE, build_store
from tests.differential.chapters import SERVERS, SETTINGS, Chapter, chapters
from tests.differential.differences import expected_of
from tests.differential.playing import play
from tests.e2e.serving import Home, Server, serving
from tests.recorded_answers import answer_of

from modelserver.tools.migrate.calls import Response
from modelserver.tools.migrate.comparison import masked, mismatches
from modelserver.tools.migrate.rules import RULES

_TYPED = next(rule for rule in RULES if rule.name == "content-type")


@contextlib.contextmanager
def modelserver(store: Path, folder: Path, name: str) -> Iterator[dict[str, tuple[str, int]]]:
    """A running modelserver with the settings of that server; gives the addresses of its ports."""
    # TorchServe's messages are compared; the details that modelserver adds have their own tests.
    settings = {**SETTINGS, **SERVERS[name], "expose_errors": "false"}
    server = Server(Home(folder), store, settings=settings)
    with serving(server):
        parts = {
            name: urlsplit(str(server.settings[f"{name}_address"]))
            for name in ("inference", "management", "metrics")
        }
        yield {name: (part.hostname or "", part.port or 0) for name, part in parts.items()}


def recorded(chapter: Chapter) -> dict[str, Response]:
    """What TorchServe answered, by the names of the calls."""
    document = json.loads((HERE / "recorded" / f"{chapter.name}.json").read_text("utf-8"))
    return {entry["name"]: answer_of(entry["answer"]) for entry in document}


def unexplained(
    chapter: Chapter, torchserves: dict[str, Response], addresses: dict[str, tuple[str, int]]
) -> dict[str, list[str]]:
    """The calls of a chapter whose answers are not what is expected, with the mismatches."""
    ours = {name: masked(answer) for name, answer in play(chapter, addresses).items()}
    result = {}
    for call in chapter.calls:
        expected, _ = expected_of(chapter, call, torchserves[call.name])
        if ours[call.name].headers.get("content-type") != "application/json":
            # Whether the handler returned text or bytes is not recorded.
            expected = _TYPED.change(call, expected, ours[call.name])
        if wrong := mismatches(expected, ours[call.name]):
            result[call.name] = wrong
    return result


def main(names: list[str]) -> int:
    """1 if something is not explained."""
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) / "store"
        build_store(store)
        required = [chapter for chapter in chapters() if not names or chapter.name in names]
        for server in SERVERS:
            of_kind = [chapter for chapter in required if chapter.server == server]
            if not of_kind:
                continue
            with modelserver(store, Path(temporary) / f"server-{server}", server) as addresses:
                for chapter in of_kind:
                    for name, wrong in unexplained(chapter, recorded(chapter), addresses).items():
                        failed += 1
                        print(f"{chapter.name}/{name}:\n  " + "\n  ".join(wrong), flush=True)
    print(f"{failed} answers are not explained")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
