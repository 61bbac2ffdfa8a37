"""A model's own Python packages, from its archive's requirements file (reference 10.6).

With ``install_py_dep_per_model`` pip installs them into a folder that is first on the path of this model's
workers, after the archive's own modules. With ``useVenv`` they go into a virtual environment that also sees
the server's packages and whose Python runs the workers; it is created even without requirements.

Unlike TorchServe, which installs into the unpacked archive each time, environments are cached under a hash of
the requirements, the local files that these name, and the Python; servers may share the cache. A failed
installation fails the registration and leaves nothing behind. Unused environments are removed to make room
for new ones (``environments/shared_cache.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from modelserver.errors import BadRequest, InvalidModel
from modelserver.models.environments.cache_folder import cache_folder
from modelserver.models.environments.packages import WorkerEnvironment
from modelserver.models.environments.shared_cache import CacheEntry, SharedCache, Use

# A hash of an archive's requirements file and of the local files that it names.

# `-r other.txt` and `-c limits.txt`, in all their spellings.
_FURTHER = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(\S+)")
_OPTION = re.compile(r"(?:-\S|--[\w-]+)[ =]+(\S+)")
_EDITABLE = re.compile(r"-e\b|--editable\b")
_MAX_FILES = 10_000


def digest(requirements: Path | None, folder: Path, *further: str) -> str:
    """A hash of the file, of the local files that it names, and of ``further`` texts.

    For files outside ``folder``, the archive, size and time replace the content. Answers of a package index
    are not included: requirements without a version are not looked up again. Raises OSError and
    UnicodeDecodeError.
    """
    folder = folder.resolve()
    hashed = hashlib.sha256()
    for text in further:
        _add(hashed, text.encode())
    lists: set[Path] = set()
    named = set() if requirements is None else _named(requirements.resolve(), folder, lists)
    for path in sorted(named):
        within = path.is_relative_to(folder)
        _add(hashed, str(path.relative_to(folder) if within else path).encode())
        status = path.stat()
        _add(hashed, _content(path) if within else f"{status.st_size} {status.st_mtime_ns}".encode())
    if any(_EDITABLE.match(line) for path in lists for line in _stripped_lines(path)):
        # Such a package is not copied: the environment is valid for this folder only.
        _add(hashed, str(folder).encode())
    return hashed.hexdigest()[:32]


def _content(path: Path) -> bytes:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
    return hashed.digest()


def _stripped_lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8-sig").splitlines()]


def _add(hashed: hashlib._Hash, data: bytes) -> None:
    hashed.update(len(data).to_bytes(8, "little"))
    hashed.update(data)


def _named(file: Path, folder: Path, seen: set[Path]) -> set[Path]:
    """The file, and the local files that it refers to."""
    if file in seen:
        return set()
    seen.add(file)
    files = {file}
    for line in _stripped_lines(file):
        text = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if further := _FURTHER.match(text):
            # pip resolves it relative to the file.
            if (other := (file.parent / further[1]).resolve()).is_file():
                files |= _named(other, folder, seen)
            continue
        option = _OPTION.match(text)
        name = (option[1] if option else text.partition(" ")[0]).removeprefix("file://").partition("[")[0]
        if name and "://" not in name:
            files |= set(_files((folder / name).resolve(), folder))
    return files


def _files(path: Path, folder: Path) -> Iterator[Path]:
    """The file, or those in the directory; outside the archive without subdirectories."""
    if path.is_file():
        yield path
    elif path.is_dir():
        inner = path.rglob("*") if path.is_relative_to(folder) else path.glob("*")
        yield from (file for file in islice(inner, _MAX_FILES) if file.is_file())


_log = logging.getLogger("modelserver.models")
_model_log = logging.getLogger("modelserver.model")

# Seconds for everything that pip does for one model, including waiting for others that install the same.
INSTALL_LIMIT = 1800.0
_LAST_LINES = 20
_LINE_LIMIT = 1 << 16
_PROBE = """
import json, os, sys, sysconfig
kinds = ("site-packages", "dist-packages")
sites = [path for path in sys.path if os.path.basename(path) in kinds and os.path.isdir(path)]
print(json.dumps([sys.version, sysconfig.get_platform(), sys.prefix, sites]))
"""


def _into_the_log(text: str, source: str) -> None:
    _model_log.info("%s", text, extra={"source": source})


class EnvironmentFailed(BadRequest):
    """The packages of a model cannot be installed."""

    type = "ModelException"


@dataclass(frozen=True, slots=True)
class _Request:
    """What a model needs."""

    name: str
    version: str
    model_dir: Path
    requirements: str | None
    venv: bool


@dataclass(frozen=True)
class Environments:
    """Creates environments, or finds them in the cache.

    Args:
        python: of the workers.
        fallback: a folder to use without a cache, removed with the server.
        hidden: environment variables that pip, which runs code of packages, does not get.
        folder: instead of the cache.
        limit: timeout in seconds.
        keep: bytes of all environments; beyond that, unused ones are removed.
        printed: gets each line that pip prints, and which model's it is; the model's log by default.
    """

    python: str
    fallback: Path
    hidden: re.Pattern[str] | None = None
    folder: Path | None = None
    limit: float = INSTALL_LIMIT
    keep: int = SharedCache.LIMIT
    printed: Callable[[str, str], None] = _into_the_log

    async def provide(
        self,
        model: tuple[str, str],
        model_dir: Path,
        requirements: str | None,
        *,
        venv: bool,
        tell: Callable[[str], None] | None = None,
    ) -> WorkerEnvironment:
        """The environment of a model, in use until it is released.

        ``model`` is its name and version; ``requirements`` is its file in ``model_dir``, None to install
        nothing. ``tell`` is called with the progress.

        Raises:
            InvalidModel: the requirements file is missing or cannot be read.
            EnvironmentFailed: pip failed or timed out; its last lines are in the message.
        """
        request = _Request(*model, model_dir, requirements, venv)
        folder = self.folder or await asyncio.to_thread(cache_folder, "environments")
        if folder is None:
            folder = self.fallback
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            identity, sites = await self._interpreter()
        except (OSError, ValueError) as error:
            raise _failed(request, f"The Python {self.python} cannot be run: {error}") from error
        entry = CacheEntry(place := folder / await asyncio.to_thread(_key, request, identity))
        try:
            if (use := entry.use()) is not None:
                _log.info(
                    "%s %s: its packages are already installed: %s", request.name, request.version, place
                )
            else:
                making = self._make(request, entry, sites, tell)
                use = await asyncio.wait_for(making, self.limit)
                await self._prune(folder)
        except asyncio.TimeoutError:
            raise _failed(request, f"It did not finish within {self.limit:g} s.") from None
        except OSError as error:
            raise _failed(request, f"{error.strerror or error}: {error.filename or place}.") from error
        if venv:
            return WorkerEnvironment(str(place / "venv" / "bin" / "python"), use=use)
        paths = [str(place / "packages"), *filter(None, [self._variables().get("PYTHONPATH")])]
        return WorkerEnvironment(variables={"PYTHONPATH": os.pathsep.join(paths)}, use=use)

    async def _make(
        self, request: _Request, entry: CacheEntry, sites: Sequence[str], tell: Callable[[str], None] | None
    ) -> Use | None:
        """Creates the environment unless another server did meanwhile.

        It is created in its final place, as the scripts of a virtual environment contain its path; the mark,
        which is renamed into place at the end, makes it complete.
        """

        def waits() -> None:
            _log.info("%s %s: its packages are already being installed", request.name, request.version)

        async with entry.locked(waits) as lock:
            if (existing := entry.use()) is not None:
                return existing
            await asyncio.to_thread(entry.begin)
            started = time.monotonic()
            text = f"Installing the packages of {request.name} {request.version}"
            _log.info("%s into %s", text, entry.place)
            if tell is not None:
                tell(text)
            try:
                await self._fill(request, entry.place, sites, lock)
                size = await asyncio.to_thread(entry.measure)
                entry.complete(f"{request.name} {request.version}", size)
            except BaseException:
                await asyncio.to_thread(entry.clear)
                raise
            took = time.monotonic() - started
            _log.info(
                "The packages of %s %s are installed, after %.1f s", request.name, request.version, took
            )
            return entry.use()

    async def _prune(self, folder: Path) -> None:
        """Removes unused environments if the new one made the folder too large."""
        try:
            removed = await asyncio.to_thread(SharedCache(folder).prune, self.keep)
        except OSError as error:
            _log.warning("%s cannot be searched for unused environments: %s", folder, error)
            return
        for place in removed:
            _log.info("Removed the unused environment %s", place)

    async def _fill(self, request: _Request, place: Path, sites: Sequence[str], lock: int) -> None:
        python, where = self.python, ["--upgrade", "--target", str(place / "packages")]
        if request.venv:
            venv = place / "venv"
            # Not in the model's folder: Python would take its venv.py, or a module that venv imports.
            command = [python, "-m", "venv", "--without-pip", str(venv)]
            made = await self._run(command, place.parent, request, lock, "venv")
            if made.status:
                raise EnvironmentFailed(
                    f"Virtual environment creation failed for model {request.name}. {made.words('Python')}"
                )
            _inherit(venv, sites)
            python, where = (
                str(venv / "bin" / "python"),
                ["--upgrade", "--upgrade-strategy", "only-if-needed"],
            )
        if request.requirements is None:
            return
        file = str(request.model_dir / request.requirements)
        command = [python, "-m", "pip", "install", *where, "-r", file]
        ended = await self._run(command, request.model_dir, request, lock, "pip")
        if ended.status:
            raise _failed(request, ended.words("pip"))

    async def _run(self, command: list[str], folder: Path, request: _Request, lock: int, what: str) -> _Ended:
        """Runs a command to its end and logs its output in the model's log.

        It holds the lock too: if the server dies, the next one waits until the command has ended.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        last: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            async for text in _lines(process.stdout):
                last.append(text)
                self.printed(text, f"{request.name}_{request.version}-{what}")
            return _Ended(await process.wait(), list(last))
        finally:
            # Its children may outlive it, and all of them a timeout or a cancelled registration.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await asyncio.shield(process.wait())

    def _variables(self) -> dict[str, str]:
        """The server's variables, such as PIP_INDEX_URL; without prompts and version checks of pip."""
        hidden = self.hidden
        visible = {k: v for k, v in os.environ.items() if hidden is None or not hidden.fullmatch(k)}
        return {**visible, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}

    async def _interpreter(self) -> tuple[str, Sequence[str]]:
        """What identifies the Python, and the folders of its packages."""
        process = await asyncio.create_subprocess_exec(
            self.python, "-c", _PROBE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        version, platform, prefix, sites = json.loads(output)
        return f"{version} {platform} {prefix}", sites


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a command ended."""

    status: int
    last: list[str]

    def words(self, what: str) -> str:
        """The end of an error's message."""
        printed = "\n".join(self.last)
        end = f"Its last lines were:\n{printed}" if printed else "It printed nothing."
        return f"{what} ended with status {self.status}. {end}"


def _failed(request: _Request, reason: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"Custom pip package installation failed for model {request.name}. {reason}")


def _key(request: _Request, identity: str) -> str:
    kind = "venv" if request.venv else "packages"
    name = request.requirements
    file = None if name is None else request.model_dir / name
    if file is not None and not file.is_file():
        raise InvalidModel(f"The requirementsFile {name!r} of {request.name} is missing.")
    try:
        return f"{kind}-{digest(file, request.model_dir, identity)}"
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModel(
            f"The requirementsFile {name!r} of {request.name} cannot be read: {error}"
        ) from error


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The output line by line; a line that is too long comes in pieces."""
    rest = b""
    while data := await stream.read(_LINE_LIMIT):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_LIMIT:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", "replace")


def _inherit(venv: Path, sites: Sequence[str]) -> None:
    """Adds these folders of packages to a virtual environment's path, after its own."""
    lines = [f"import site; site.addsitedir({site!r})\n" for site in sites]
    for packages in venv.glob("lib/python*/site-packages"):
        (packages / "modelserver_inherited.pth").write_text("".join(lines), "utf-8")
