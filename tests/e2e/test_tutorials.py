"""The tutorials from top to bottom, as they are printed: files are saved, commands run, outputs compared.

A block of Python is the file that the text before it names last. `modelserver serve` runs until the next one
or the end of the page. The lines of a block of text are in the output of the command before it, in this
order; ``…`` stands for anything.
"""

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys

import pytest
from tests import tiny_models
from tests.e2e.blocks import BLOCKS
from tests.e2e.serving import ROOT, Home, free_port, output_of, wait_until
from tests.object_stores import hub


def search_model(folder):
    """Texts with common words are similar, as with trained weights."""
    runpy.run_path(str(ROOT / "examples" / "embeddings" / "build.py"))["build"](folder)


TUTORIALS = (
    "docs/batching-seen.md",
    "docs/first-model.md",
    "docs/safe-rollout.md",
    "docs/to-cluster.md",
    "docs/to-container.md",
)
# The models of the hub that tutorials serve; here they are small, with random weights.
HUB_TUTORIALS = {
    "docs/chat-model.md": ("Qwen/Qwen3-0.6B", tiny_models.llama),
    "docs/hub-model.md": ("sentence-transformers/all-MiniLM-L6-v2", search_model),
}
_BLOCK = re.compile(r"(?ms)^```(\w+)\n(.*?)^```$")


class Reader:
    """Somebody with a folder, two terminals and an editor, who does what a page says."""

    def __init__(self, folder, variables):
        self.home = Home(folder, variables)
        self.folder = folder / "here"
        self.folder.mkdir()
        self.server: subprocess.Popen[bytes] | None = None
        self.port = free_port(3)
        self.output = ""
        programs = folder / "bin"
        programs.mkdir()
        modules = {"modelserver": "-m modelserver", "modelserver-archive": "-m modelserver.tools.archiver"}
        for name, module in {**modules, "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            (programs / name).chmod(0o755)
        here = [f'connect-to = "localhost:{8080 + n}:127.0.0.1:{self.port + n}"\n' for n in range(3)]
        (folder / ".curlrc").write_text("".join(here))
        own = {"CURL_HOME": str(folder), "PORT": str(self.port)}
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        self.environment = {**self.home.environment, **own, "PATH": path}

    def follow(self, page):
        """Does what the page says. Raises AssertionError where something else happens."""
        end = 0
        for block in _BLOCK.finditer(page):
            language, text = block[1], block[2]
            before, end = page[end : block.start()], block.end()
            if language == "python":
                (*_, name) = re.findall(r"`(\w+\.py)`", before)
                here = text.replace("localhost:8080", f"127.0.0.1:{self.port}")
                (self.folder / name).write_text(here)
            elif language == "sh" and text.startswith("modelserver serve "):
                self.serve(text)
            elif language == "sh":
                self.output = output_of(text, self.folder, self.environment)
            elif language == "text":
                self.compare(text)

    def serve(self, command):
        """Starts the server of a terminal, after the one before has ended."""
        self.stop()
        output = self.home.path / "serve.txt"
        with output.open("wb") as file:
            words = [*shlex.split(command), "--port", str(self.port)]
            self.server = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=file)
        wait_until(lambda: "is served from" in output.read_text(), "the script is served")

    def compare(self, printed):
        lines = [re.escape(line).replace("…", ".+") for line in printed.splitlines()]
        assert re.search("(?s:.*)".join(lines), self.output), self.output

    def stop(self):
        """Ctrl-C in the terminal of the server."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(60) == 0
            self.server = None


@pytest.mark.slow  # one or two servers for each page: 3 to 8 s
@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial_happens_as_it_is_printed(name, tmp_path):
    page = (ROOT / name).read_text("utf-8")
    follow(page, tmp_path)


@pytest.mark.slow  # imports transformers
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", HUB_TUTORIALS)
def test_tutorial_of_a_hub_model_happens_as_it_is_printed(name, tmp_path):
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    repository, build = HUB_TUTORIALS[name]
    build(folder)
    with hub() as made:
        made.repository = repository
        paths = [path for path in folder.rglob("*") if path.is_file()]
        made.files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        variables = {**made.variables, "HF_HOME": str(tmp_path / "cache")}
        follow((ROOT / name).read_text("utf-8"), tmp_path, variables)


@pytest.mark.slow  # as a tutorial
def test_first_screen_of_the_readme_happens(tmp_path):
    """README.md: Serve a script."""
    page = (ROOT / "README.md").read_text("utf-8").partition("## Serve a script\n")[2].partition("\n| ")[0]
    output = follow(page, tmp_path)

    assert f"answers `{output}`" in page


def follow(page, folder, variables=None):
    """Does what a page says; returns what the last command printed."""
    reader = Reader(folder, variables or {})
    try:
        reader.follow(page)
        reader.stop()
    finally:
        if reader.server is not None:
            reader.server.kill()
    return reader.output


def test_tutorials_have_no_block_that_is_left_out():
    """What is neither run nor compared is marked as ``console``, and needs what is not here."""
    languages = {
        block.language for name, block in BLOCKS.items() if name.startswith((*TUTORIALS, *HUB_TUTORIALS))
    }

    assert languages == {"python", "sh", "text", "console"}
