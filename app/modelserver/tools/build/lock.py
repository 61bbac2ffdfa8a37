"""The packages that a model needs, in the versions that are installed here.

They are what the sources import, what a requirements file names, and all that these require in turn.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from modelserver.errors import ConfigError
from modelserver.ext.files.layout import imported_names

PROCESS_ONE: Final = "dumb-init==1.2.5.post1"
"""Process 1 of the image, as in scripts/image.lock; it is not installed here."""

PYPI: Final = "https://pypi.org/simple"
TORCH_INDEX: Final = "https://download.pytorch.org/whl"
# Packages whose builds for a processor or a kind of GPU come from an index of their own, and what they bring.
TORCH: Final = frozenset({"torch", "torchaudio", "torchvision"})
OWN: Final = frozenset({"modelserver", "modelserver_handlers", "ts"})
"""What a model imports from modelserver itself."""
_BROUGHT_BY_TORCH: Final = re.compile(r"nvidia-(?!ml-py$).*|cuda-.*|triton|pytorch-triton.*")
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>[^;]*)(;(?P<marker>.*))?"
)
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


class Lock:
    """Packages and their versions. ``torch`` are those that come from ``torch_index``."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        torch = {name: version for name, version in versions.items() if name in TORCH}
        self.torch = [f"{name}=={version.partition('+')[0]}" for name, version in sorted(torch.items())]
        self.others = sorted(
            version if " @ " in version else f"{name}=={version}"
            for name, version in versions.items()
            if name not in TORCH and not (torch and _BROUGHT_BY_TORCH.fullmatch(name))
        )
        build = torch.get("torch", "").partition("+")[2]
        self.torch_index = f"{TORCH_INDEX}/{build}" if build else PYPI


def lock(requirements: Iterable[str], imports: Iterable[str]) -> Lock:
    """The versions of what is required and imported, and of modelserver's own dependencies.

    Imported modules that are no package here are the model's own, or optional. Raises ConfigError for a
    requirement that is not installed, or that cannot be installed elsewhere in the same version.
    """
    providers = installed_packages()
    imported = {package for module in imports for package in providers.get(module, ())}
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    ahead = deque([("modelserver", ""), *((name, "") for name in sorted(imported))])
    for text in requirements:
        name, extras = _named(text)
        if _installed(name) is None:
            raise ConfigError(
                f"{text.strip()} is not installed here: install what the model needs, and try it with "
                "`modelserver serve`; the image gets the versions that are installed"
            )
        ahead += [(name, extra) for extra in ("", *extras)]
    while ahead:
        name, extra = ahead.popleft()
        package = _installed(name)
        if (normal(name), extra) in seen or package is None:
            # A requirement that is not installed is one for other machines.
            continue
        seen.add((normal(name), extra))
        if normal(name) != "modelserver":
            versions[normal(name)] = _version(package)
        for requirement, extras in _required(package, extra):
            ahead += [(requirement, each) for each in ("", *extras)]
    return Lock(versions)


def imported_modules(folder: Path) -> set[str]:
    """The first parts of the names that the sources below a folder import."""
    names = set[str]().union(*(imported_names(parsed(path)) for path in folder.rglob("*.py")))
    return names - OWN


def parsed(source: Path) -> ast.Module:
    """The syntax tree; empty for what is no Python of this version, which a worker will report."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(source.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def requirement_lines(file: Path) -> list[str]:
    """The requirements of a file. Raises ConfigError for its options, which a lock cannot follow."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line.startswith("-") or re.match(r"[./]|[\w+]+://", line):
            raise ConfigError(
                f"{file}: {line}: only names of packages, with or without versions, are allowed"
            )
    # What pip-compile writes of hashes is left to the lock.
    return [re.sub(r"\s+--\w.*", "", line) for line in lines if line]


def _named(requirement: str) -> tuple[str, list[str]]:
    """The name and the extras. Raises ConfigError."""
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        raise ConfigError(f"{requirement}: the name of a package is needed, with or without versions")
    return match["name"], [extra.strip() for extra in (match["extras"] or "").split(",") if extra.strip()]


def _required(package: metadata.Distribution, extra: str) -> Iterator[tuple[str, list[str]]]:
    """What a package requires for an extra, or for itself if that is empty.

    Other conditions are not evaluated: what they exclude is not installed here.
    """
    for text in package.requires or ():
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            continue
        extras = {normal(each) for each in _EXTRA.findall(match["marker"] or "")}
        if (normal(extra) in extras) if extra else not extras:
            yield _named(text)


def _version(package: metadata.Distribution) -> str:
    """The version, or the address that it was installed from. Raises ConfigError for a local one."""
    text = package.read_text("direct_url.json")
    if text is None:
        return package.version
    origin, name = json.loads(text), package.metadata["Name"]
    url: str = origin["url"]
    if url.startswith("file:"):
        raise ConfigError(
            f"{name} was installed from {url}, which an image cannot do: install it from a package index or "
            "a repository, or put its sources beside the script"
        )
    if control := origin.get("vcs_info"):
        return f"{name} @ {control['vcs']}+{url}@{control['commit_id']}"
    return f"{name} @ {url}"


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


@cache
def installed_packages() -> Mapping[str, list[str]]:
    """The distributions that are installed here, by the packages that they bring; reading takes a while."""
    return metadata.packages_distributions()


def normal(name: str) -> str:
    """The name of a distribution as indexes have it."""
    return re.sub(r"[-_.]+", "-", name).lower()
