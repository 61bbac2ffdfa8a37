"""Records what the real TorchServe 0.12.0 answers.

    python -m tests.differential.record path/to/environment [chapter ... | ts_names]

The environment is a virtual one with torchserve and torch-model-archiver 0.12.0 and a torch; Java is needed
too. Its archiver also makes the archives in ``recorded/archives`` where they are missing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.differential.archives import HERE, MODEL_CODE, SAVED_SUFFIX, TORCHSERVES, build_store
from tests.differential.chapters import SERVERS, Chapter, chapters, recording_of
from tests.differential.playing import TORCHSERVES_ROLLBACK, play
from tests.differential.torchserve import missing, torchserve

from modelserver.tools.migrate.comparison import masked

RECORDED = HERE / "recorded"
NAMES = "ts_names"
"""Beside the chapters: the public names of the package ``ts``."""


def main(arguments: list[str]) -> int:
    environment = Path(arguments[0]) if arguments else None
    if reason := missing(str(environment) if environment else None):
        print(reason, file=sys.stderr)
        return 1
    assert environment is not None
    with tempfile.TemporaryDirectory() as temporary:
        pack_with_torchserve(environment, Path(temporary))
        store = Path(temporary) / "store"
        build_store(store)
        if not arguments[1:] or NAMES in arguments[1:]:
            (RECORDED / f"{NAMES}.json").write_text(names_of(environment) + "\n", "utf-8")
        names = [c for c in chapters() if not arguments[1:] or c.name in arguments[1:]]
        for server, settings in SERVERS.items():
            of_kind = [chapter for chapter in names if chapter.server == server]
            if of_kind:
                folder = Path(temporary) / f"server-{server}"
                with torchserve(environment, store, folder, settings) as addresses:
                    for chapter in of_kind:
                        record(chapter, addresses)
    return 0


def names_of(environment: Path) -> str:
    """What :mod:`tests.differential.surface` prints in that environment."""
    command = [str(environment.resolve() / "bin" / "python"), str(HERE / "surface.py")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def record(chapter: Chapter, addresses: dict[str, tuple[str, int]]) -> None:
    """Plays a chapter and writes its recording, what differs from run to run masked."""
    began = time.monotonic()
    answers = {name: masked(each) for name, each in play(chapter, addresses, TORCHSERVES_ROLLBACK).items()}
    text = json.dumps(recording_of(chapter, answers), indent=1, ensure_ascii=False)
    (RECORDED / f"{chapter.name}.json").write_text(text + "\n", "utf-8")
    print(f"{chapter.name}: {len(answers)} answers in {time.monotonic() - began:.0f} s", flush=True)


def pack_with_torchserve(environment: Path, temporary: Path) -> None:
    """Makes one archive of each format with the real torch-model-archiver."""
    TORCHSERVES.mkdir(parents=True, exist_ok=True)
    for name, archive_format, suffix in (
        ("theirs_default", "default", ".mar"),
        ("theirs_store", "zip-store", ".mar"),
        ("theirs_tgz", "tgz", ".tar.gz"),
        ("theirs_folder", "no-archive", ""),
    ):
        saved = TORCHSERVES / f"{name}{suffix}{SAVED_SUFFIX}"
        if saved.exists():
            continue
        program = str(environment.resolve() / "bin" / "torch-model-archiver")
        target = ["--archive-format", archive_format, "--export-path", str(temporary)]
        subprocess.run([program, *pack_arguments(name), *target], check=True, capture_output=True)
        shutil.move(temporary / f"{name}{suffix}", saved)


def pack_arguments(name: str) -> list[str]:
    """The command line of both archivers for the archive that holds everything."""
    parts = HERE / "archive_parts"
    flags = {
        "--model-name": name,
        "--version": "1.0",
        "--handler": MODEL_CODE / "configured.py",
        "--serialized-file": parts / "weights.bin",
        "--model-file": parts / "net.py",
        "--extra-files": f"{parts / 'extra'},{parts / 'notes'}/*.txt",
        "-r": parts / "requirements.txt",
        "-c": parts / "model-config.yaml",
    }
    return [str(word) for pair in flags.items() for word in pair]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
