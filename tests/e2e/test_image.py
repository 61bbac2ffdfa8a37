"""The container image, built and run: Debian's podman builds it on a stand-in for the base image, with empty
packages in place of torch, and runs it without a network.

It takes 4 minutes on 2 cores (230 s measured), most of them for installing packages.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.e2e.serving import ROOT, archived, wait_until

from modelserver import __version__
from modelserver.tools.build.command import main as build_context

_PROGRAMS = ("podman", "runc", "mmdebstrap")
_MISSING = [name for name in _PROGRAMS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not os.environ.get("MODELSERVER_LONG_TESTS"),
        reason="builds the image for minutes: only with MODELSERVER_LONG_TESTS=1",
    ),
    pytest.mark.skipif(bool(_MISSING) or os.getuid() != 0, reason=f"needs root and Debian's {_PROGRAMS}"),
]

BASE = "docker.io/library/python:stand-in"
IMAGE = "localhost/modelserver:test"
HANDLER = """
import time

def handle(data, context):
    if data is None:
        return None
    time.sleep(max(float(row["body"]) for row in data))
    return ["awake" for _ in data]
"""
# Sends a request from inside the container, as nothing outside reaches its server.
ASK = """
import sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/predictions/sleeper", sys.argv[1].encode())
request.add_header("Authorization", "Bearer token-of-a-test")
request.add_header("Content-Type", "application/octet-stream")
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
TOKENS = [f"MODELSERVER_{scope}_TOKEN=token-of-a-test" for scope in ("INFERENCE", "MANAGEMENT", "API")]


class Engine:
    def __init__(self, folder):
        places = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self.command = ["podman", *places, "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs"]
        self.command += ["--runtime", "runc"]

    def run(self, *arguments, check=True, **more):
        command = [*self.command, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
        assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def inspect(self, kind, name):
        (result,) = json.loads(self.run(kind, "inspect", name).stdout)
        assert isinstance(result, dict)
        return result


class Container:
    # Podman needs systemd for health checks; the limits are those that this machine allows.
    LIMITS = "--stop-timeout 45 --ulimit nofile=1024:4096 --ulimit nproc=4096:4096"
    OPTIONS = ("--network", "none", "--no-healthcheck", *LIMITS.split())

    def __init__(self, engine, *arguments):
        self.engine = engine
        self.id = engine.run("run", "--detach", *self.OPTIONS, *arguments).stdout.strip()

    def python(self, code, *arguments):
        return self.engine.run("exec", self.id, "python", "-c", code, *arguments).stdout.strip()

    def health(self):
        check = self.engine.inspect("image", IMAGE)["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        return self.engine.run("exec", self.id, *check[1:], check=False).stdout.strip()

    def ready(self):
        wait_until(lambda: self.health() == "ready" or not self.is_running(), "it is healthy", 120)
        assert self.is_running(), self.engine.run("logs", self.id).stdout
        return self

    def is_running(self):
        return self.engine.inspect("container", self.id)["State"]["Running"]

    def ended(self):
        wait_until(lambda: not self.is_running(), "it ends", 60)
        return self.engine.inspect("container", self.id)["State"]["ExitCode"]


def stub(folder, name, version, *files):
    """A package without content, as an index of one folder for each has it."""
    (folder / name).mkdir(parents=True)
    wheel = f"{name}-{version}-py3-none-any.whl"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    made = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / name / wheel, "w") as archive:
        for file in ("__init__.py", *files):
            archive.writestr(f"{name}/{file}", "")
        for file, text in (("METADATA", described), ("WHEEL", made), ("RECORD", "")):
            archive.writestr(f"{name}-{version}.dist-info/{file}", text)
    (folder / name / "index.html").write_text(f'<a href="{wheel.replace("+", "%2B")}">{wheel}</a>')


def make_base(engine, folder):
    """Debian's smallest system with this Python in /usr/local, as in Docker's image."""
    root, prefix = folder / "root", Path(sys.base_prefix)
    packages = "ca-certificates,libbz2-1.0,libffi8,liblzma5,libreadline8,libsqlite3-0,libssl3,libuuid1"
    bootstrap = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"]
    subprocess.run([*bootstrap, "bookworm", root], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    local, library = root / "usr" / "local", Path("lib") / version
    shutil.copy(Path(sys.executable).resolve(), local / "bin" / version)
    for name in ("python", "python3"):
        (local / "bin" / name).symlink_to(version)
    for shared in (prefix / "lib").glob("libpython*"):
        shutil.copy(shared, local / "lib", follow_symlinks=False)
    left = shutil.ignore_patterns("test", "site-packages", "__pycache__", "config-*")
    shutil.copytree(prefix / library, local / library, ignore=left)
    for part in (prefix / library / "site-packages").glob("pip*"):
        shutil.copytree(part, local / library / "site-packages" / part.name)
    (local / "bin" / "pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    (local / "bin" / "pip").chmod(0o755)
    tar = ["tar", "--create", "--directory", root, "--exclude=./dev/*", "--file", folder / "base.tar", "."]
    subprocess.run(tar, check=True)
    paths = ("ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "ENV LD_LIBRARY_PATH=/usr/local/lib")
    engine.run("import", *(f"--change={path}" for path in paths), folder / "base.tar", BASE)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The engine, with the base and the image; all of it is removed at the end."""
    folder = tmp_path_factory.mktemp("image")
    made = Engine(folder)
    try:
        make_base(made, folder)
        stub(folder / "simple" / "cpu", "torch", "2.8.0+cpu", "test/a", "bin/test_a", "bin/torch_shm_manager")
        stub(folder / "simple" / "cpu", "torchvision", "0.23.0+cpu")
        shutil.copytree(folder / "simple" / "cpu", folder / "simple" / "cu128")
        build(made, folder, "cpu", "--tag", IMAGE)
        yield made
    finally:
        made.run("rm", "--all", "--force", "--time", 0, check=False)
        made.run("rmi", "--all", "--force", check=False)
        # Podman mounts it on itself, and leaves it so.
        subprocess.run(["umount", folder / "storage" / "overlay"], capture_output=True, check=False)
        shutil.rmtree(folder)


def build(engine, folder, index, *more, check=True):
    """Builds it as ``scripts/build_image.sh`` does; how this machine reaches the index is mounted."""
    here = [folder / "simple", "/etc/ssl/certs", *(path for path in [Path("/etc/pip.conf")] if path.exists())]
    mounts = [f"--volume={path}:{'/simple' if path == here[0] else path}:ro" for path in here]
    options = ["--isolation=chroot", "--format=docker", "--pull=never", "--layers", "--network=host"]
    options += ["--ulimit=nofile=4096:4096", f"--build-arg=TORCH_INDEX=file:///simple/{index}"]
    done = subprocess.run(
        [ROOT / "scripts" / "build_image.sh", *options, *mounts, *map(str, more)],
        env={**os.environ, "ENGINE": " ".join(engine.command), "BASE": BASE, "PULL": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Options that mount a store with the model ``sleeper`` in place of the image's, and give tokens."""
    folder = tmp_path_factory.mktemp("store")
    archived(folder, "sleeper", HANDLER)
    folder.chmod(0o755)
    mounted = f"--volume={folder}:/home/model-server/model-store:ro"
    return [mounted, *(f"--env={token}" for token in TOKENS), "--env=TS_DEFAULT_WORKERS_PER_MODEL=1"]


@pytest.fixture(scope="module")
def container(engine, store):
    return Container(engine, *store, IMAGE).ready()


def test_labels_say_what_it_was_made_from(engine):
    """They name its version, commit, date and base."""
    config = engine.inspect("image", IMAGE)["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    (digest,) = {text.rpartition("@")[2] for text in engine.inspect("image", BASE)["RepoDigests"]}

    assert labels["version"] == __version__
    assert len(labels["revision"].removesuffix("-dirty")) == 40
    assert labels["created"].startswith("20")
    assert (labels["base.name"], labels["base.digest"]) == (BASE, digest)
    assert (labels["title"], labels["licenses"]) == ("modelserver", "Apache-2.0")


def test_a_layer_of_its_own_for_what_changes(engine):
    history = engine.run("history", "--format", "{{.Size}} {{.CreatedBy}}", IMAGE).stdout
    ours, packages = (
        float(line.split()[0]) for line in history.splitlines() if re.match(r"\S+ MB .* COPY dir", line)
    )

    assert ours < 15 < 150 < packages < 400


def test_image_lists_its_materials_and_has_nothing_of_torchs_tests(container):
    """The bill names all packages of the environment, and torch brings what it needs alone."""
    packages = (
        "import importlib.metadata as m, json\n"
        "def name(text): return text.lower().replace('_', '-')\n"
        "bill = json.load(open('/opt/venv/sbom.cdx.json'))['components']\n"
        "there = {name(each.metadata['Name']) for each in m.distributions()}\n"
        "print(there - {name(each['name']) for each in bill})"
    )
    files = (
        "import pathlib, torch\n"
        "found = pathlib.Path(torch.__file__).parent.rglob('*')\n"
        "print(sorted(path.name for path in found if path.is_file() and path.suffix != '.pyc'))"
    )

    assert container.python(packages) == "set()"
    assert container.python(files) == "['__init__.py', 'torch_shm_manager']"


def test_extras_are_installed(engine):
    """They are compatible with all other packages, as `pip check` shows."""
    folder, tag = Path(engine.command[2]).parent, f"{IMAGE}-extras"
    build(engine, folder, "cpu", "--target=server", "--build-arg=MODELSERVER_EXTRAS=tls,otel", "--tag", tag)
    imports = "import cryptography, opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk"
    engine.run("run", "--rm", *Container.OPTIONS, tag, "/opt/venv/bin/python", "-c", imports)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["--version"], f"modelserver Version is {__version__}"),
        (["sh", "-c", "id -u; exit 3"], "1000"),
        (["torch-model-archiver", "--help"], "--handler"),
        (["torchserve", "--version"], f"modelserver Version is {__version__}"),
    ],
)
def test_commands_run_with_their_exit_status(engine, command, output):
    """Commands of modelserver, of the system and of TorchServe run; the container has their exit status."""
    done = engine.run("run", "--rm", *Container.OPTIONS, IMAGE, *command, check=False)

    assert output in done.stdout
    assert done.returncode == (3 if "exit 3" in command[-1] else 0)


def test_it_serves_and_reaps(container):
    """Its health is good, its model answers, and orphans of its processes do not stay as zombies."""
    assert container.python(ASK, "0") == "awake"
    processes = (
        "import os, pathlib, subprocess, time\n"
        "subprocess.run(['sh', '-c', 'sleep 0.1 & sleep 0.1 &'])\n"
        "def left():\n"
        "    found = [path.read_text() for path in pathlib.Path('/proc').glob('[0-9]*/stat')]\n"
        "    return [each for each in found if '(sleep)' in each or ') Z ' in each]\n"
        "until = time.monotonic() + 30\n"
        "while left() and time.monotonic() < until:\n"
        "    time.sleep(0.1)\n"
        "print(pathlib.Path('/proc/1/comm').read_text().strip(), left())"
    )
    assert container.python(processes) == "dumb-init []"


def test_it_starts_again_after_it_was_killed(engine, container):
    """The container keeps nothing of the archives that it had unpacked."""
    engine.run("kill", "--signal", "KILL", container.id)
    assert container.ended() == 137
    engine.run("start", container.id)
    container.ready()

    assert container.python(ASK, "0") == "awake"
    folders = "import pathlib; print(len(list(pathlib.Path('/tmp').glob('modelserver-*'))))"
    assert container.python(folders) == "1"


def test_it_drains(engine, container):
    """A request that has been accepted is answered, and then it ends well."""
    engine.run("exec", "--detach", container.id, "python", "-c", ASK, "5")
    time.sleep(2)
    engine.run("stop", container.id)

    assert container.ended() == 0
    log = engine.run("logs", container.id).stdout
    assert re.search(r'"POST /predictions/sleeper HTTP/1.1" 200 5\d\d\d$', log, re.MULTILINE)
    assert "modelserver stopped." in log


def test_it_can_be_stopped_while_it_starts(engine, store):
    """This works from the first moment on: no grace period passes."""
    started = Container(engine, *store, IMAGE)
    began = time.monotonic()
    engine.run("stop", started.id)

    assert time.monotonic() - began < 10
    assert started.ended() in {0, 143}


def test_any_user_of_group_0_can_write(engine, store):
    """As on OpenShift, such a user can write snapshots."""
    started = Container(engine, "--user", "12345:0", *store, IMAGE).ready()

    assert started.python("import os; print(os.getuid(), os.listdir('logs'))") == "12345 ['config']"
    engine.run("rm", "--force", "--time", 0, started.id)


def test_image_runs_read_only(engine, store):
    """The container is started as in docs/docker.md; files in the temporary folder can be executed."""
    options = ["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp:exec"]
    options += ["--env=XDG_CACHE_HOME=/tmp/cache"]
    started = Container(engine, *options, *store, IMAGE, "--ncs").ready()

    assert started.python(ASK, "0") == "awake"
    copied = (
        "import shutil, subprocess; shutil.copy('/bin/true', '/tmp/t'); subprocess.run('/tmp/t', check=True)"
    )
    assert started.python(copied) == ""
    engine.run("stop", started.id)
    assert started.ended() == 0


def test_as_kserve_starts_it(engine, store):
    """The runtime's arguments and variables, volume and read-only root; the model has the service's name."""
    (runtime, *_) = yaml.safe_load_all((ROOT / "deploy/kserve/clusterservingruntime.yaml").read_text("utf-8"))
    (spec,) = runtime["spec"]["containers"]
    filled = {each["name"]: each["value"].replace("{{.Name}}", "sleeper") for each in spec["env"]}
    options = ["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp"]
    options += [f"--env={name}={value}" for name, value in filled.items()]
    mounted = store[0].replace("/home/model-server/model-store", "/mnt/models")
    arguments = [word.replace("{{.Name}}", "sleeper") for word in spec["args"]]
    started = Container(engine, *options, mounted, IMAGE, *arguments).ready()

    assert started.python(ASK, "0") == "awake"
    engine.run("rm", "--force", "--time", 0, started.id)


def test_image_of_one_model_is_built_and_serves(engine, tmp_path):
    """From what `modelserver build` writes, with packages of the index alone."""
    (tmp_path / "sleeper.py").write_text(HANDLER)
    context, tag = tmp_path / "context", "localhost/sleeper:test"
    assert build_context([str(tmp_path / "sleeper.py"), "--output", str(context), "--base", BASE]) == 0
    here = ["/etc/ssl/certs", *(path for path in ["/etc/pip.conf"] if Path(path).exists())]
    options = ["--isolation=chroot", "--format=docker", "--pull=never", "--network=host"]
    options += ["--ulimit=nofile=4096:4096", *(f"--volume={path}:{path}:ro" for path in here)]
    engine.run("build", *options, "--tag", tag, context)
    assert engine.inspect("image", tag)["Config"]["User"] == "1000:1000"

    started = Container(engine, f"--env={TOKENS[0]}", "--env=TS_DEFAULT_WORKERS_PER_MODEL=1", tag).ready()
    assert started.python(ASK, "0") == "awake"
    assert started.python("import os; print(os.getuid())") == "1000"
    engine.run("stop", started.id)
    assert started.ended() == 0
