"""What the README and the other texts tell people to type, and where their links lead."""

import functools
import re
import shlex
import subprocess
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.documents import describe_listener

from modelserver.run.cli import build_parser
from modelserver.surface.inference.routes import parse_route
from modelserver.tools import COMMANDS, archiver
from modelserver.tools.migrate.installation import read_installation

_ROOT = Path(__file__).parents[1]
_TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(path.relative_to(_ROOT)) for path in sorted(_ROOT.glob("docs/**/*.md"))),
)
_EXAMPLES = tuple(str(path.relative_to(_ROOT)) for path in _ROOT.glob("examples/*/README.md"))
_README = (_ROOT / "README.md").read_text(encoding="utf-8")

_OURS = {"modelserver": build_parser, "modelserver-archive": archiver.make_parser}
_LISTENERS = {8080: "inference", 8081: "management", 8082: "metrics"}
_PATH_OPTIONS = {"-T", "--ts-config", "--model-store", "--handler", "--spec-file", "-r"}
# Files that the reader has or makes: a photo, handlers and scripts that pages show.
_READERS_OWN = re.compile(
    r"[A-Z]+\.jpg|kitten\.jpg|my_handler\.py|(my|elsewhere)\.properties|(load|search|talk|train|price_[12])\.py"
)


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its name without the folder, and its arguments."""

    text: str
    name: str
    arguments: list[str]


def code_blocks(text):
    """Fenced blocks of shell and indented blocks, in order."""
    fenced = re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```", text)
    rest = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    indented = re.findall(r"(?m)(?:^(?: {4}.*)\n)+", rest)
    return [body for kind, body in fenced if kind == "sh"] + indented


def commands(text):
    """The simple commands of all blocks; lists, pipes and loops are taken apart."""
    result = []
    for line in "\n".join(code_blocks(text)).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # no shell
        for part in re.split(r"\0[;&|]+\0", "\0" + "\0".join(words) + "\0"):
            arguments = [word for word in part.split("\0") if word and word != "do"]
            if arguments:
                result.append(Command(line.strip(), arguments[0].rpartition("/")[2], arguments[1:]))
    return result


def block_under(heading, number=1):
    section = _README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", section)
    return blocks[number - 1].strip()


def cases(*names):
    """Parameters: the commands of these names in all texts."""
    return [
        pytest.param(command, id=f"{text}: {command.text}"[:90])
        for text in (*_TEXTS, *_EXAMPLES)
        for command in commands((_ROOT / text).read_text(encoding="utf-8"))
        if command.name in names
    ]


def test_the_proof_is_of_what_the_repository_has():
    (text,) = re.findall(r"`modelserver (migrate [^`]*)`", _README)
    options = import_module(COMMANDS["migrate"][0]).build_parser().parse_args(shlex.split(text)[1:])
    flags = {"model_store": str(_ROOT / options.model_store), "load_models": options.models}
    installation = read_installation(_ROOT / options.config, options.torchserve, flags, {})

    assert installation.loaded.settings.load_all
    assert [path.name for path in installation.store.glob("*.mar")] == ["mnist.mar"]


def test_it_is_short():
    assert len(_README.splitlines()) < 120
    assert len(re.findall(r"<img|!\[", _README)) == 1


def test_the_first_command_installs_and_serves_the_embedded_model():
    command = block_under("Start")
    made, installed, started = commands(f"    {command}\n")

    assert "\n" not in command
    assert (made.name, made.arguments) == ("python3", ["-m", "venv", ".venv"])
    assert (installed.name, installed.arguments) == ("pip", ["install", ".[torch]"])
    options = build_parser().parse_args(started.arguments)
    assert options.start
    assert not options.foreground
    assert [(_ROOT / options.model_store / name).is_file() for name in options.load_models] == [True]


def test_the_next_line_predicts_with_it():
    section = _README.partition("\n## Start\n")[2]
    first, second, *_ = re.findall(r"(?ms)^```sh\n(.*?)^```", section)
    (predict,) = commands(f"```sh\n{second}```\n")

    assert "--start" in first
    assert predict.name == "curl"
    assert (_ROOT / option(predict, "-T")).is_file()
    assert parse_route(urlsplit(predict.arguments[-1]).path) == parse_route("/predictions/mnist")


def test_commands_install_and_run_all_tests():
    """The first works by itself: it makes the environment too. The second runs what the first leaves out."""
    fast, slow = (block_under("Run the tests", number) for number in (1, 2))
    made, installed, tested = commands(f"    {fast}\n")
    more, tested_slowly = commands(f"    {slow}\n")

    assert "\n" not in fast + slow
    assert (made.name, made.arguments) == ("python3", ["-m", "venv", "--upgrade-deps", ".venv"])
    assert (installed.name, installed.arguments) == ("pip", ["install", "-e", ".[test,lint]"])
    assert (more.name, more.arguments) == ("pip", ["install", "-e", ".[test-slow]"])
    assert (tested.name, tested.arguments) == ("python", ["-m", "pytest", "-n", "4"])
    # Without the expression they are skipped.
    assert (tested_slowly.name, tested_slowly.arguments) == ("python", [*tested.arguments, "-m", "slow"])
    assert '"-m", "not slow"]' in (_ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [1, 2])
def test_ci_runs_the_commands_as_they_stand(number):
    """What .ci/run takes from the README is those commands, word for word."""
    script = (_ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"(?ms)^command_under\(\) \{.*?^\}", script)

    done = subprocess.run(
        ["bash", "-euc", f"{function[0]}\ncommand_under 'Run the tests' {number}"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"command_under 'Run the tests' {number}" in script
    assert done.stdout.strip() == block_under("Run the tests", number)


def test_ci_can_be_run():
    script = _ROOT / ".ci" / "run"

    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_torchserve_users_change_one_word():
    reference = [command for command in commands(_README) if command.name == "torchserve"]
    ours = [command for command in commands(_README) if command.name == "modelserver"]

    assert len(reference) == 1
    assert reference[0].arguments in [command.arguments for command in ours]


def option(command, name):
    """The value of an option; fails if it is not given."""
    return dict(pairwise(command.arguments))[name]


def is_there(path):
    """Whether a path exists in the clone, or is the reader's own."""
    return bool(_READERS_OWN.fullmatch(path)) or (_ROOT / path).exists()


@pytest.mark.parametrize("command", cases(*_OURS))
def test_flags_exist(command):
    first, *rest = command.arguments
    if first in COMMANDS:
        import_module(COMMANDS[first][0]).build_parser().parse_args(rest)
    elif first == archiver.WORKFLOW:
        archiver.make_workflow_parser().parse_args(rest)
    else:
        _OURS[command.name]().parse_args(command.arguments)


@pytest.mark.parametrize("command", cases("curl", "python", "python3", *_OURS))
def test_files_exist(command):
    pairs = pairwise(command.arguments)
    named = [value for key, value in pairs if key in _PATH_OPTIONS and "://" not in value]
    if command.name.startswith("python"):
        named += [word for word in command.arguments[:1] if word.endswith(".py")]

    assert [path for path in named if not is_there(path)] == []


@pytest.mark.parametrize("command", cases("pip"))
def test_extras_exist(command):
    named = re.findall(r"\[([a-z,]+)\]", " ".join(command.arguments))
    known = set(metadata("modelserver").get_all("Provides-Extra") or ())

    assert {extra for group in named for extra in group.split(",")} <= known


@pytest.mark.parametrize("command", cases("python", "python3"))
def test_options_of_scripts_exist(command):
    first, *rest = command.arguments
    if _READERS_OWN.fullmatch(first):
        assert rest == []
    elif first.endswith(".py"):
        source = (_ROOT / first).read_text(encoding="utf-8")
        assert [word for word in rest if word.startswith("--") and f'"{word}"' not in source] == []
    else:
        assert first == "-m"
        # Looking for pip would import setuptools' replacement of distutils, which warns.
        assert rest[0] in {"pip", "venv"} or find_spec(rest[0]) is not None


@pytest.mark.parametrize("command", cases("curl"))
def test_curl_asks_for_what_there_is(command):
    """Port, method, path and query parameters are those of a route."""
    (url,) = [word for word in command.arguments if "localhost:" in word]
    parts = urlsplit(url if "://" in url.partition("?")[0] else f"http://{url}")
    role = _LISTENERS[parts.port or 0]
    if role == "inference" and parse_route(parts.path) is not None:
        return

    operation = find_operation(paths_of(role), method_of(command), parts.path)
    known = {parameter["name"] for parameter in operation.get("parameters", ())}
    assert {name for name, _ in parse_qsl(parts.query)} <= known


@functools.cache
def paths_of(role):
    return describe_listener(role, "0")["paths"]


def method_of(command):
    if "-X" in command.arguments:
        return option(command, "-X")
    if "-T" in command.arguments:
        return "PUT"
    return "POST" if "-d" in command.arguments else "GET"


def find_operation(paths, method, path):
    """The operation of a described API that a request would reach."""
    for template, item in paths.items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in item:
            return item[method.lower()]
    return None


@pytest.mark.parametrize("name", [*_TEXTS, *_EXAMPLES])
def test_links_lead_somewhere(name):
    page = _ROOT / name
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    files = [target for target in targets if "://" not in target]

    assert [target for target in files if not (page.parent / target).exists()] == []
