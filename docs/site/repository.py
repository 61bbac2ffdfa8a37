"""What the site has from outside docs/: the other pages of the repository, and the files that pages link to.

They keep their path in the repository, and pages of docs/ lose that first part; links are changed to match.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "examples/*/README.md")
# In Markdown, and the README's picture.
_LINK = re.compile(
    r"""(?:(?<=\]\()|(?<=src=")|(?<=srcset="))(?!\w+:|#|/)(?P<path>[^)"#\s]+)(?P<anchor>#[^)"\s]*)?(?=[)"])"""
)

# In docstrings, as Sphinx has it; of a name after ~, readers see the last part.
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(?:~[\w.]*\.)?([\w.]+)</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, and what is linked."""
    added = [path.relative_to(_ROOT).as_posix() for pattern in _PAGES for path in sorted(_ROOT.glob(pattern))]
    inside = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for name in dict.fromkeys([*added, *(link for page in (*inside, *added) for link in _linked(page))]):
        if files.get_file_from_path(_place(name)) is None and (_ROOT / name).is_file():
            files.append(File(name, str(_ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The page with its links as they are in the site."""
    here = _source(page.file)

    def changed(link: re.Match[str]) -> str:
        place = _place(_target(here, link["path"]))
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + (link["anchor"] or "")

    return _LINK.sub(changed, markdown)


def on_page_content(html: str, **_: object) -> str:
    """The page with names of classes and functions of docstrings as code."""
    return _ROLE.sub(r"<code>\1</code>", html)


def _source(file: File) -> str:
    """The path of a page in the repository."""
    return Path(str(file.abs_src_path)).relative_to(_ROOT).as_posix()


def _linked(page: str) -> Iterator[str]:
    for link in _LINK.finditer((_ROOT / page).read_text("utf-8")):
        yield _target(page, link["path"])


def _target(page: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def _place(name: str) -> str:
    """The path in the site of a file of the repository."""
    return name.removeprefix("docs/")
