"""How peers are installed, told their work and started; no peer is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers import install
from benchmarks.peers.apps.task import Task, environment, told
from benchmarks.peers.launch import SUBJECTS, Job
from benchmarks.peers.mlp import Mlp
from benchmarks.peers.packages import PEERS, missing, python_of, version_of
from benchmarks.servers import ROOT
from benchmarks.works import WORKS, Work, open_inference_body, raw_body

PICTURE = b"a picture"


def job(folder: Path, work: Work = WORKS["mlp_b32"]) -> Job:
    own = folder / "own"
    own.mkdir(exist_ok=True)
    kinds = ("noop", "mlp", "resnet", "resnet auto", "resnet plain", "resnet compile")
    kinds += ("resnet bf16", "resnet bf16-compile", "resnet int8")
    names = {kind: f"{kind.replace(' ', '-')}.mar" for kind in kinds}
    return Job(
        work=work,
        folder=own,
        store=folder,
        archives=names,
        arch="resnet18",
        picture=PICTURE,
        peers=folder / "peers",
        threads=3,
        queue=77,
    )


def fake_python(folder: Path, name: str, text: str) -> None:
    python = python_of(folder, name)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_server_can_be_asked_for_its_works(name: str, tmp_path: Path) -> None:
    """A launch has a command, a port of its own and a question for each work that the subject is part of."""
    subject = SUBJECTS[name]
    parts = [work for work in WORKS.values() if subject.works(work)]

    assert parts
    for work in parts:
        launch = subject.launch(job(tmp_path, work))
        assert launch.command
        assert launch.port > 1024
        assert launch.question.path.startswith("/")
        assert launch.question.body
        assert launch.queue


def test_the_same_queue_is_asked_of_all_that_have_one(tmp_path: Path) -> None:
    """TorchServe and this server are configured with it, Ray Serve and BentoML are told."""
    works = {
        name: next(work for work in WORKS.values() if subject.works(work))
        for name, subject in SUBJECTS.items()
    }
    queues = {name: SUBJECTS[name].launch(job(tmp_path, work)).queue for name, work in works.items()}

    assert {name for name, queue in queues.items() if queue.endswith("=77")} == {
        "window",
        "adaptive",
        "plain",
        "compile",
        "bf16",
        "bf16-compile",
        "int8",
        "torchserve",
        "torchserve-quiet",
        "rayserve",
        "bentoml",
    }
    assert "job_queue_size=77\n" in (tmp_path / "own" / "config.properties").read_text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("window", "max_batch_delay=5"),
        ("adaptive", "batch_policy=adaptive"),
        ("torchserve", "max_batch_delay=5"),
    ],
)
def test_models_are_registered_with_batch_and_policy(name: str, expected: str, tmp_path: Path) -> None:
    """The work's batch size and window, or our policy, are in the registration."""
    launch = SUBJECTS[name].launch(job(tmp_path))

    assert launch.registration is not None
    assert {"url=mlp.mar", "batch_size=32", "initial_workers=1", expected} <= set(
        launch.registration[1].partition("?")[2].split("&")
    )


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("window", "resnet-auto.mar"),
        ("bf16-compile", "resnet-bf16-compile.mar"),
        ("torchserve", "resnet.mar"),
    ],
)
def test_variants_are_archives(name: str, archive: str, tmp_path: Path) -> None:
    """Our configurations of a network differ by their archive; TorchServe has the plain one."""
    launch = SUBJECTS[name].launch(job(tmp_path, WORKS["resnet_b8"]))

    assert launch.registration is not None
    assert f"url={archive}&" in launch.registration[1]
    assert launch.variables["OMP_NUM_THREADS"] == "3"


def test_torchserve_uses_its_own_python(tmp_path: Path) -> None:
    """Its environment comes first on the path, and nothing of ours is imported by it."""
    launch = SUBJECTS["torchserve"].launch(job(tmp_path))

    assert launch.variables["PATH"].startswith(str(tmp_path / "peers" / "torchserve" / "bin"))
    assert launch.variables["PYTHONPATH"] == ""


def test_the_logs_of_torchserve_can_be_off(tmp_path: Path) -> None:
    """Its quiet configuration is given to it."""
    launch = SUBJECTS["torchserve-quiet"].launch(job(tmp_path))
    config = Path(launch.command[launch.command.index("--log-config") + 1])

    assert 'level="error"' in config.read_text()
    assert "disable_system_metrics=true" in (tmp_path / "own" / "config.properties").read_text()


def test_bodies_say_the_same() -> None:
    """The MLP gets the same numbers in either protocol, and a picture arrives whole."""
    plain = json.loads(raw_body("mlp", PICTURE)[0])["instances"][0]
    tensor = json.loads(open_inference_body("mlp", PICTURE)[0])["inputs"][0]

    assert len(plain) == 64
    assert tensor["data"] == plain
    assert raw_body("resnet", PICTURE) == (PICTURE, "image/jpeg")


def test_a_task_travels_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program reads is what it was told."""
    task = Task(
        kind="mlp", batch=32, delay=0.005, port=1, queue=2, threads=3, archive="a.mar", arch="resnet18"
    )
    for name, value in environment(task).items():
        monkeypatch.setenv(name, value)

    assert told() == task


def test_peers_compute_what_the_handler_computes() -> None:
    """The small network answers alike as a handler of an archive and as a peer's model."""
    body = raw_body("mlp", b"")[0]
    task = Task("mlp", 32, 0.0, 1, 1, 1, "", "")
    model = task.model()
    handler = Mlp()
    handler.initialize(None)
    (answer,) = handler.handle([{"body": json.loads(body)}], None)

    assert model.answers([model.parse(body)]) == [answer]
    assert set(answer["predictions"][0]) == {"class", "probs"}
    assert sum(answer["predictions"][0]["probs"]) == pytest.approx(1.0)


def test_a_batch_is_answered_request_by_request() -> None:
    """Requests with several rows get theirs together, in their order."""
    model = Task("mlp", 32, 0.0, 1, 1, 1, "", "").model()
    rows = [[float(i)] * 64 for i in range(3)]
    alone = [model.answers([[row]])[0]["predictions"][0]["class"] for row in rows]
    both = model.answers([rows[:2], rows[2:]])

    assert [[row["class"] for row in answer["predictions"]] for answer in both] == [alone[:2], alone[2:]]


def test_nothing_is_answered_with_little() -> None:
    """One small object for each request."""
    model = Task("noop", 1, 0.0, 1, 1, 1, "", "").model()

    assert model.answers([model.parse(b"x"), model.parse(b"y")]) == [{"ok": 1}, {"ok": 1}]


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, no environment, no Java, no package: each has its reason; with all there is none."""
    peer = PEERS["torchserve"]
    reasons = [missing(None, peer), missing(tmp_path, peer)]
    fake_python(tmp_path, "torchserve", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    reasons.append(missing(tmp_path, peer))
    monkeypatch.setattr("shutil.which", lambda _: "/bin/java")
    reasons.append(missing(tmp_path, peer))
    python_of(tmp_path, "torchserve").write_text("#!/bin/sh\necho 0.12.0\n")

    assert [reason and reason.split(" (")[0] for reason in reasons] == [
        "no folder with peers given",
        "not installed",
        "java is missing",
        "torchserve is not in its virtual environment",
    ]
    assert missing(tmp_path, peer) is None


def test_versions_are_those_of_the_environment() -> None:
    """An interpreter is asked; what it does not have has no version."""
    assert version_of(Path(sys.executable), "psutil")
    assert version_of(Path(sys.executable), "no-such-package") is None
    assert version_of(Path("/no/such/python"), "psutil") is None


def test_an_installation_shares_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip runs in the peer's environment without our packages in sight; afterwards torch is."""
    commands: list[list[str]] = []
    home = tmp_path / "site"
    home.mkdir()
    shared = home / install.SHARED
    shared.write_text("left from before")

    def pip(command: list[str], **_: object) -> None:
        assert not shared.exists()
        commands.append(command)

    monkeypatch.setattr(install.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(install, "site_packages", lambda _: home)
    monkeypatch.setattr(install.subprocess, "run", pip)
    install.install(tmp_path, PEERS["torchserve"])

    assert [command[0] for command in commands] == [str(python_of(tmp_path.resolve(), "torchserve"))] * 2
    assert commands[0][-1] == "tqdm"
    assert commands[1][-2:] == ["--no-deps", "captum"]
    assert "site-packages" in shared.read_text()


def test_an_installation_of_wheels_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter's pip installs exactly these."""
    commands: list[list[str]] = []
    monkeypatch.setattr(install.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(install, "site_packages", lambda _: tmp_path)
    monkeypatch.setattr(install.subprocess, "run", lambda command, **_: commands.append(command))
    install.install(tmp_path, PEERS["torchserve"], [tmp_path / "torchserve.whl"])

    (command,) = commands
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert {"--no-index", "--no-deps", str(python_of(tmp_path.resolve(), "torchserve"))} <= set(command)
    assert command[-1] == str(tmp_path / "torchserve.whl")


def test_an_installation_can_be_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run names the requirements and makes nothing."""
    assert install.main([str(tmp_path), "litserve", "--dry-run"]) == 0
    assert "pip install litserve==" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_unknown_peers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists those that there are."""
    with pytest.raises(SystemExit):
        install.main([str(tmp_path), "nobody"])

    assert "there are torchserve, litserve" in capsys.readouterr().err


def test_one_door_leads_to_all_programs() -> None:
    """``python -m benchmarks`` lists them, and fails where none is named."""
    start = [sys.executable, "-m", "benchmarks"]
    asked, silent = (
        subprocess.run([*start, *more], cwd=ROOT, capture_output=True, text=True, check=False)
        for more in (["--help"], [])
    )

    assert (asked.returncode, silent.returncode) == (0, 2)
    assert {"compare", "peers", "growth"} <= set(asked.stdout.split())
    assert silent.stderr == asked.stdout
