import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from modelserver import __version__
from modelserver.errors import ConfigError
from modelserver.models.settings.properties import parse
from modelserver.models.settings.sources import BENEATH
from modelserver.tools import COMMANDS
from modelserver.tools.container import __main__ as container
from modelserver.tools.container.__main__ import WRITTEN, prepare

_ALWAYS = ["--foreground"]
_OTHERS = ["tune", "check", "migrate", "record", "replay"]


@pytest.fixture
def temp(tmp_path, monkeypatch):
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "mnist.mar").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], _ALWAYS),
        (["--models", "a.mar", "b=c.mar", "--ncs"], [*_ALWAYS, "--models", "a.mar", "b=c.mar", "--ncs"]),
        (["--ts-config=x.properties"], [*_ALWAYS, "--ts-config=x.properties"]),
        *(
            ([word, "--start", "--ncs"], [*_ALWAYS, "--start", "--ncs"])
            for word in ("torchserve", "modelserver")
        ),
        (["serve", "--start", "--ncs"], [*_ALWAYS, "--start", "--ncs"]),
        (["modelserver", "serve", "app.py"], ["serve", "app.py"]),
        *(
            ([*first, word, "--help"], [word, "--help"])
            for word in _OTHERS
            for first in ([], ["modelserver"])
        ),
    ],
    ids=lambda words: " ".join(words) or "none",
)
def test_arguments_become_flags_of_the_server(arguments, flags):
    """Flags reach the server as they are, behind those that keep it in the foreground. TorchServe's words, as
    in ``docker run IMAGE torchserve --start``, are understood; other commands of modelserver are no start,
    and a server for one script is called in full. The environment is not changed.
    """
    environment = {"TS_JOB_QUEUE_SIZE": "7", "TS_CONFIG_FILE": "y"}
    assert prepare(arguments, environment) == (flags, environment)


def test_the_images_settings_are_beneath_a_configuration(tmp_path, models, temp, monkeypatch):
    """Of a server alone: neither of other commands nor under KServe, whose configuration is complete."""
    monkeypatch.setattr(container, "IMAGES_OWN", tmp_path / "own")
    (tmp_path / "own").touch()

    assert prepare([], {})[1] == {BENEATH: str(tmp_path / "own")}
    assert prepare([], {BENEATH: "mine"})[1] == {BENEATH: "mine"}
    assert prepare(["tune"], {})[1] == {}
    assert prepare([f"--model-dir={models}"], {})[1] == {}


def test_all_commands_are_known():
    """Those of ``modelserver`` are no commands of their own in the image."""
    assert not any(container.is_other([word]) for word in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model-dir={}", "--model-name=digits", "--http-port=9000", "--grpc-port=9001"],
        ["--model_dir={}", "--model_name=digits", "--http_port=9000", "--grpc_port=9001"],
        ["--model-dir", "{}", "--model-name", "digits", "--http-port", "9000", "--grpc-port", "9001"],
    ],
)
def test_kserves_arguments_become_a_configuration(temp, models, arguments):
    words = [*(word.format(models) for word in arguments), "--disable-token-auth"]

    flags, _ = prepare(words, {})

    written = temp / WRITTEN
    pod = ["--ncs", "--ts-config", str(written), "--model-store", str(models)]
    assert flags == [*_ALWAYS, *pod, "--disable-token-auth"]
    settings = parse(written.read_bytes())
    assert settings["load_models"] == "digits=mnist.mar"
    assert settings["inference_address"].endswith(":9000")
    assert settings["grpc_inference_port"] == "9001"


def test_a_configuration_named_in_the_environment_is_the_base(temp, models):
    """``TS_CONFIG_FILE`` wins over the flag, as for the server, and does not hide what was made of it."""
    own = models / "own.properties"
    own.write_text("job_queue_size=7\n", encoding="utf-8")

    _, environment = prepare([f"--model-dir={models}"], {"TS_CONFIG_FILE": str(own), "A": "b"})

    assert parse((temp / WRITTEN).read_bytes())["job_queue_size"] == "7"
    assert environment == {"A": "b"}


def test_kserves_own_runtime_needs_no_other_arguments(temp, tmp_path, monkeypatch):
    """``PROTOCOL_VERSION`` in the environment shows that KServe started it."""
    (tmp_path / "model-store").mkdir()
    (tmp_path / "model-store" / "mnist.mar").write_bytes(b"")
    monkeypatch.setattr(container, "MOUNTED", tmp_path)
    arguments = ["torchserve", "--start", f"--model-store={tmp_path}/model-store"]

    under_kserve, _ = prepare(arguments, {"PROTOCOL_VERSION": "v1"})
    elsewhere, _ = prepare(arguments, {})

    assert str(temp / WRITTEN) in under_kserve
    assert elsewhere == [*_ALWAYS, *arguments[1:]]


def test_a_folder_without_models_ends_the_container(tmp_path, temp, capsys):
    with pytest.raises(ConfigError, match="No model"):
        prepare([f"--model-dir={tmp_path}"], {})

    assert list(temp.iterdir()) == []

    assert container.main([f"--model-dir={tmp_path}"]) == 1
    assert capsys.readouterr().out.startswith(f"No model in {tmp_path}: ")


def test_a_temporary_folder_that_is_missing_ends_the_container(models, monkeypatch):
    missing = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
    monkeypatch.setattr("tempfile.gettempdir", Mock(side_effect=missing))
    with pytest.raises(ConfigError, match=r"properties cannot be written: .* found in \['/tmp'\]$"):
        prepare([f"--model-dir={models}"], {})


def entry_point(folder, *arguments, **environment):
    roots = os.pathsep.join(str(Path(__file__).parents[3] / name) for name in ("app", "handlers"))
    return subprocess.run(
        [sys.executable, "-m", "modelserver.tools.container", *arguments],
        env={**os.environ, "PYTHONPATH": roots, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_any_other_command_is_run(tmp_path):
    script = tmp_path / "mine.sh"
    script.write_text("#!/bin/sh\necho mine $1\nexit 3\n")
    script.chmod(0o755)

    by_shell = entry_point(tmp_path, "sh", "-c", "echo $0 shell", "a")
    by_path = entry_point(tmp_path, "./mine.sh", "one two")
    by_name = entry_point(tmp_path, "mine.sh", "x", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert (by_shell.returncode, by_shell.stdout) == (0, "a shell\n")
    assert (by_path.returncode, by_path.stdout) == (3, "mine one two\n")
    assert by_name.stdout == "mine x\n"

    done = entry_point(tmp_path, "torchserve", "--version")

    assert done.stdout == f"modelserver Version is {__version__}\n"


def test_a_word_that_nobody_knows_ends_the_container(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    missing = entry_point(tmp_path, "server")
    unusable = entry_point(tmp_path, "./notes.txt")

    assert missing.returncode == unusable.returncode == 127
    assert missing.stdout == "server: this image has no such command, and modelserver no such word.\n"
    assert unusable.stdout == "./notes.txt cannot be run: Permission denied\n"
