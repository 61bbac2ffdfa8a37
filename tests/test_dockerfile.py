"""The recipe of the image: its structure, and its commands run; ``tests/e2e/test_image.py`` builds it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.documents import describe_listener

from modelserver.models.settings.load import load_settings
from modelserver.run.cli import build_parser
from modelserver.surface.auth.scopes import needed_scope
from modelserver.tools.container.__main__ import IMAGES_OWN, prepare
from modelserver.tools.container.healthcheck import ROUTE

_ROOT = Path(__file__).parents[1]
_HOME = "/home/model-server"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``stage`` counts the FROM lines up to it, from 0, and is -1 before the first."""

    stage: int
    name: str
    text: str

    @property
    def words(self):
        """The arguments without flags."""
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    @property
    def exec_form(self):
        """The arguments as the JSON list they are."""
        return json.loads(self.text)


def parse(text):
    """The instructions of a Dockerfile; continued lines are joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    instructions, stage = [], -1
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, arguments = line.partition(" ")
        stage += name == "FROM"
        instructions.append(Instruction(stage, name, arguments.strip()))
    return instructions


_ALL = parse((_ROOT / "Dockerfile").read_text(encoding="utf-8"))
_IGNORE = (_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
_LAST = max(item.stage for item in _ALL)
_RUNS = [item.text for item in _ALL if item.name == "RUN"]
_ARGUMENTS = dict(item.text.split("=", 1) for item in _ALL if item.name == "ARG" and "=" in item.text)
"""The build's arguments and their defaults."""


def of(name, stage=None):
    return [item for item in _ALL if item.name == name and stage in (None, item.stage)]


def only(name):
    """The one instruction of a name in the last stage."""
    (result,) = of(name, _LAST)
    return result


def from_clone(stage=None):
    copies = [item for item in of("COPY", stage) if "--from=" not in item.text]
    return [source for item in copies for source in item.words[:-1]]


def image_settings(home, environment=None):
    """The settings of the image, with its home directory elsewhere."""
    (home / "model-store").mkdir(exist_ok=True)
    text = (_ROOT / "scripts" / "container.properties").read_text(encoding="utf-8")
    (home / "config.properties").write_text(text.replace(_HOME, str(home)), encoding="utf-8")
    return load_settings({}, environment or {}, home)


def test_stages_install_by_locks_from_one_slim_base():
    """The last stage copies the results of the others and makes the user; the one that installs packages,
    most of the image, depends on the lock and on arguments alone.
    """
    (useradd,) = of("RUN", _LAST)
    (uid,) = re.findall(r"useradd .*--uid (\d+)", useradd.text)

    assert of("FROM", _LAST)[0].text == "${BASE}"
    assert re.fullmatch(r"python:3\.1\d-slim-[a-z]+", _ARGUMENTS["BASE"])
    assert from_clone(stage=1) == ["scripts/image.lock", "scripts/image-*.lock"]
    assert [item.text for item in of("COPY", 1) if "--from=" in item.text] == []
    assert int(uid) >= 1000
    assert only("USER").text == f"{uid}:{uid}"
    assert all(_ALL.index(only("USER")) > _ALL.index(item) for item in of("COPY", _LAST))


def locked(name="image.lock"):
    """A lock: for each package its versions, their markers, and how many hashes they have."""
    result = {}
    text = (_ROOT / "scripts" / name).read_text(encoding="utf-8")
    for entry in re.findall(r"(?m)^[a-z].*(?:\n    --hash.*)*", text):
        head, _, hashes = entry.partition("\\\n")
        name, version, marker = re.fullmatch(r"(\S+)==(\S+)(?: ; (.*))?", head.strip()).groups()  # type: ignore[union-attr]
        result.setdefault(name, []).append((version, marker or "", hashes.count("--hash=sha256:")))
    return result


def test_the_lock_is_of_the_packages_that_are_needed():
    """Each that modelserver depends on, in a version that it takes, and with hashes; process 1 as well."""
    project = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"(?ms)^dependencies = \[(.*?)^\]", project)
    needed = [Requirement(text) for text in re.findall(r'"([^"]+)"', listed)]
    lock = locked()

    for requirement in needed:
        versions = lock[canonicalize_name(requirement.name)]
        assert [version for version, _, _ in versions if version not in requirement.specifier] == []
    assert all(hashes > 0 for versions in lock.values() for _, _, hashes in versions)
    assert "dumb-init" in lock
    assert not {"torch", "torchvision"} & lock.keys()


_EXTRAS = sorted(path.stem.removeprefix("image-") for path in (_ROOT / "scripts").glob("image-*.lock"))


def test_locks_of_extras_match_the_others():
    project = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = {(name, marker): version for name, all_ in locked().items() for version, marker, _ in all_}

    assert _EXTRAS == ["otel", "sources", "tls"]
    for extra in _EXTRAS:
        (listed,) = re.findall(rf"(?m)^{extra} = \[(.*)\]", project)
        lock = locked(f"image-{extra}.lock")
        for requirement in map(Requirement, re.findall(r'"([^"]+)"', listed)):
            chosen = [version for version, _, _ in lock[canonicalize_name(requirement.name)]]
            assert [version for version in chosen if version not in requirement.specifier] == []
        for name, result in lock.items():
            assert all(hashes > 0 for _, _, hashes in result)
            for version, marker, _ in result:
                assert versions.setdefault((name, marker), version) == version, name


@pytest.mark.parametrize(
    ("extras", "installed"),
    [
        ("", None),
        ("otel", "-r {}/image-otel.lock"),
        ("sources,otel", "-r {0}/image-sources.lock -r {0}/image-otel.lock"),
        ("torch", None),
        ("../image", None),
        ("*", None),
    ],
)
def test_extras_are_installed_by_their_locks(extras, installed, tmp_path):
    (command,) = [item.text for item in of("RUN", 1) if "MODELSERVER_EXTRAS" in item.text]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "pip").chmod(0o755)
    locks = str(_ROOT / "scripts")
    done = subprocess.run(
        ["sh", "-c", command.replace("/opt/venv", str(tmp_path)).replace("/locks", locks)],
        env={**os.environ, "MODELSERVER_EXTRAS": extras},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    if installed is None and extras:
        assert done.returncode == 1
        assert done.stderr.startswith("MODELSERVER_EXTRAS: there is no ")
        assert done.stdout == ""
    else:
        expected = f"install --no-cache-dir --require-hashes {installed.format(locks)}\n" if installed else ""
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_only_what_is_copied_is_sent_to_the_engine():
    rules = [rule for rule in _IGNORE if rule and not rule.startswith("#")]

    assert (rules[0], rules[-1]) == ("*", "**/__pycache__")
    assert sorted(rule.removeprefix("!") for rule in rules[1:-1]) == sorted(set(from_clone()))

    assert [source for source in from_clone() if not list(_ROOT.glob(source))] == []


def test_torch_is_the_build_without_cuda_by_default():
    (installs,) = [item.text for item in of("RUN", 1) if "TORCH_INDEX" in item.text]

    assert _ARGUMENTS["TORCH_INDEX"] == "https://download.pytorch.org/whl/cpu"
    assert [item.text for item in of("ARG", 1)] == ["TORCH_INDEX", "TORCH", "MODELSERVER_EXTRAS"]
    assert '--index-url "${TORCH_INDEX}" ${TORCH}' in installs


_WHL = "https://download.pytorch.org/whl"


def install_torch(folder, index, offered, installed, *, can_import=True):
    """The end of the command that installs torch, and how pip and Python were called: stand-ins, for an index
    that offers these versions and for the version that gets installed.
    """
    (command,) = [item.text for item in of("RUN", 1) if "TORCH_INDEX" in item.text]
    torch = folder / "lib" / "python3.12" / "site-packages" / "torch"
    (folder / "bin").mkdir()
    (torch / "bin").mkdir(parents=True)
    for name in ("test_api", "protoc-3.13", "torch_shm_manager"):
        (torch / "bin" / name).touch()
    (torch / "test").mkdir()
    note = f'echo "${{0##*/}} $*" >> {folder}/calls\n'
    pip = f'[ "$1" = index ] && echo "Available versions: {offered}"; exit 0'
    python = f'case "$*" in *"import torch"*) exit {int(not can_import)};; esac; echo {installed}'
    for name, text in (("pip", pip), ("python", python)):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{note}{text}\n")
        (folder / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command.replace("/opt/venv", str(folder))],
        env={**os.environ, "TORCH_INDEX": index, "TORCH": "torch torchvision"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, (folder / "calls").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("index", "installed"),
    [
        (f"{_WHL}/cu128", "2.8.0+cu128"),
        (f"{_WHL}/cu128/", "2.8.0+cu128"),
        (f"{_WHL}/rocm6.4", "2.8.0+rocm6.4"),
        ("file:///mirror/cpu", "2.8.0+cpu"),
        ("https://pypi.org/simple", "2.8.0"),
        ("https://mirror.example/api/pypi/torch-cu128/simple/", "2.8.0+cu128"),
    ],
)
def test_torch_of_an_index_or_a_mirror_is_installed_and_imported(index, installed, tmp_path):
    """With or without a slash or a build in its address; torch's tests and compilers are removed before."""
    done, calls = install_torch(tmp_path, index, installed, installed)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"pip install --no-cache-dir --index-url {index} torch torchvision" in calls
    assert calls[-1].startswith("python -c import torch,")
    assert "__import__('torchvision')" in calls[-1]
    torch = tmp_path / "lib" / "python3.12" / "site-packages" / "torch"
    assert sorted(path.name for path in torch.rglob("*")) == ["bin", "torch_shm_manager"]


@pytest.mark.parametrize("offered", ["2.9.1, 2.8.0+cu126", "2.9.1", ""])
def test_an_index_without_the_build_fails_before_the_download(offered, tmp_path):
    """Rather than after gigabytes of another one."""
    done, calls = install_torch(tmp_path, f"{_WHL}/cu128/", offered, "2.9.1")

    assert done.returncode == 1
    assert done.stderr == f"TORCH_INDEX: {_WHL}/cu128/ has no torch for cu128\n"
    assert [call for call in calls if not call.startswith("pip index")] == []


@pytest.mark.parametrize("installed", ["2.9.1+cu130", "2.9.1"])
def test_another_build_of_torch_than_named_fails(installed, tmp_path):
    """Rather than that an image for one CUDA has another in it, where ``TORCH`` names a version."""
    done, _ = install_torch(tmp_path, f"{_WHL}/cu128", "2.8.0+cu128", installed)

    assert done.returncode == 1
    assert done.stderr == f"torch {installed} is not the build of {_WHL}/cu128\n"


def test_a_torch_that_cannot_be_imported_fails_the_build(tmp_path):
    """Rather than each worker of the image."""
    done, _ = install_torch(tmp_path, f"{_WHL}/cpu", "2.8.0+cpu", "2.8.0+cpu", can_import=False)
    assert done.returncode == 1


def test_the_entrypoint_is_the_server_in_the_foreground():
    """In exec form, under a process 1 that passes signals to it alone, without a CMD to be replaced."""
    first, single, rest, *server = only("ENTRYPOINT").exec_form

    assert (first, single, rest) == ("dumb-init", "--single-child", "--")
    assert server == ["python", "-m", "modelserver.tools.container"]
    flags, _ = prepare([], {})
    assert build_parser().parse_args(flags).foreground
    assert only("STOPSIGNAL").text == "SIGTERM"

    flags, _ = prepare(["--models", "all"], {})

    assert of("CMD") == []
    assert build_parser().parse_args(flags).load_models == ["all"]


def test_health_is_checked_where_no_token_is_needed():
    """By a module of the package, so without curl; other ports and tokens are its own tests' business."""
    options, _, text = only("HEALTHCHECK").text.partition("CMD ")
    python, flag, module = json.loads(text)

    assert (python, flag) == ("python", "-m")
    assert find_spec(module) is not None
    assert "get" in describe_listener("inference", "0")["paths"][ROUTE]
    assert needed_scope({"inference"}, "GET", ROUTE, ping_token=True) is None
    flags = {word.partition("=")[0] for word in options.split()}
    assert flags == {"--interval", "--timeout", "--start-period", "--retries"}


def test_only_inference_leaves_the_container(tmp_path):
    """Management and metrics stay on loopback (design 9; F63). ``docker run -e TS_…`` needs no file."""
    settings = image_settings(tmp_path).settings

    assert str(settings.inference_address) == "http://0.0.0.0:8080"
    assert settings.grpc_inference_address == "0.0.0.0"
    assert settings.management_address.is_loopback
    assert settings.metrics_address.is_loopback
    assert settings.grpc_management_address == "127.0.0.1"

    addresses = (settings.inference_address, settings.management_address, settings.metrics_address)
    grpc = (settings.grpc_inference_port, settings.grpc_management_port)
    ports = (*(address.port for address in addresses), *grpc)

    assert only("EXPOSE").words == [str(port) for port in ports]

    copied = [tuple(item.words) for item in of("COPY", _LAST) if "--from=" not in item.text]

    assert settings.load_all
    assert only("WORKDIR").text == _HOME
    assert copied == [
        ("scripts/container.properties", "config.properties"),
        ("scripts/container.properties", str(IMAGES_OWN)),
        ("model_store/mnist.mar", f"{(settings.model_store or Path()).name}/mnist.mar"),
    ]

    loaded = image_settings(tmp_path, {"TS_JOB_QUEUE_SIZE": "7"})

    assert loaded.settings.job_queue_size == 7
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("mounted", "is_all", "reads_variables"),
    [
        ((_ROOT / "config.properties").read_text(encoding="utf-8"), True, True),
        ("job_queue_size=7\n", True, True),
        ("model_store=model-store\n", False, True),
        ("model_snapshot={}\n", False, True),
        ("load_models=\nenable_envvars_config=false\n", False, False),
    ],
    ids=["the repository's", "other keys", "a store", "a state", "nothing and no variables"],
)
def test_a_mounted_configuration_need_not_repeat_the_images(
    mounted, is_all, reads_variables, tmp_path, monkeypatch
):
    """Others reach inference, variables are read; a file that names a store decides what is loaded."""
    image_settings(tmp_path)
    monkeypatch.setattr("modelserver.tools.container.__main__.IMAGES_OWN", tmp_path / "own.properties")
    (tmp_path / "config.properties").rename(tmp_path / "own.properties")
    (tmp_path / "config.properties").write_text(mounted, encoding="utf-8")
    _, environment = prepare([], {"TS_JOB_QUEUE_BYTES": "7"})
    loaded = load_settings({}, environment, tmp_path)

    assert str(loaded.settings.inference_address) == "http://0.0.0.0:8080"
    assert loaded.settings.model_store == tmp_path / "model-store"
    assert loaded.settings.load_all == is_all
    assert (loaded.settings.job_queue_bytes == 7) == reads_variables
    assert (loaded.warnings == ()) == reads_variables


@pytest.mark.parametrize("command", _RUNS)
def test_commands_are_well_formed(command):
    done = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow  # builds the wheel and an environment
@pytest.mark.skipif(
    not os.environ.get("MODELSERVER_LONG_TESTS"),
    reason="builds for half a minute, as the test of the image does: only with MODELSERVER_LONG_TESTS=1",
)
@pytest.mark.timeout(300)
def test_commands_of_the_stages_make_the_environment(tmp_path):
    """With the files that are copied, and nothing else, they build the wheel and install the command, and
    TorchServe's beside it.

    Paths are moved into a temporary directory; other packages, and the stages that only install some, are
    left out.
    """
    source = tmp_path / "src"
    source.mkdir()
    for name in from_clone(stage=0):
        copy = shutil.copytree if (_ROOT / name).is_dir() else shutil.copy
        copy(_ROOT / name, source / name)
    places = {"/wheels": "wheels", "/opt/venv": "venv", "/server": "server"}
    moved = {place: str(tmp_path / name) for place, name in places.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    makes_venv = next(item for item in of("RUN", 1) if "-m venv" in item.text)

    for run in (*of("RUN", 0), makes_venv, *of("RUN", 2)):
        command = re.sub("|".join(moved), lambda result: moved[result[0]], run.text)
        command = re.sub(r"&& \S+/pip check ", "", command)
        environment = {**os.environ, **_ARGUMENTS, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "modelserver",
        "modelserver_handlers",
    }
    assert {"modelserver/py.typed", "modelserver_handlers/py.typed"} <= set(names)
    for name in ("modelserver", "torchserve", "torch-model-archiver"):
        script = tmp_path / "server" / "bin" / name
        assert os.access(script, os.X_OK)
        assert f"{tmp_path}/venv/bin/python" in script.read_text(encoding="utf-8")
