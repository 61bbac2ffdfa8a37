import os

import pytest

from modelserver.tools.build import command
from modelserver.tools.build.command import build_parser, find_source, main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a script, and programs of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "iris.py").write_text("class Iris: ...\n")
    (tmp_path / "bin").mkdir()
    (folder / "data").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return folder


def program(folder, name, text):
    (folder.parent / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder.parent / "bin" / name).chmod(0o755)


def test_two_commands_build_and_run_it(here, capsys):
    program(here, "podman", "exit 1")

    assert main(["iris.py:Iris", "--batch-size", "8"]) == 0
    text = capsys.readouterr().out
    assert "Written: Iris-container\n  Iris: 2 files, " in text
    assert "    podman build --format docker -t iris Iris-container\n" in text
    assert "    podman run --rm -p 8080:8080 -e MODELSERVER_INFERENCE_TOKEN=choose-your-own iris\n" in text
    assert "localhost:8080/predictions/Iris -T FILE" in text
    assert (here / "Iris-container" / "Dockerfile").is_file()


@pytest.mark.parametrize("status", [0, 3])
def test_engine_builds_it_on_request(here, capfd, status):
    program(here, "docker", f'echo "called: $*"; exit {status}')

    assert main(["iris.py", "--docker", "--tag", "registry/iris:1", "--output", "out put"]) == status
    text = capfd.readouterr().out
    assert "called: build -t registry/iris:1 out put\n" in text
    assert ("Run it:" in text) == (status == 0)
    assert "Build and run" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["iris.py", "--podman"], "--podman: there is no program podman here"),
        (["absent.py"], "SOURCE: absent.py does not exist; iris.py does"),
        (["org/name"], "org/name is not on this machine: download it first"),
        (["torchvision://resnet18"], "torchvision://resnet18 is not on this machine"),
        (["."], "has neither MAR-INF/MANIFEST.json nor a config.json of the hub; name its script, as in "),
        (["data"], "data has neither MAR-INF/MANIFEST.json nor a config.json of the hub"),
        (["iris.py:Rose"], "iris.py has no Rose: it defines Iris."),
        (
            ["iris.py", "--task", "rerank"],
            "--task and --engine are for models of the hub, and iris.py is none",
        ),
        (["iris.py", "--batch-size", "0"], "--batch-size=0: a number of at least 1 is needed"),
        (["iris.py", "--requirements", "r.txt"], "--requirements: r.txt does not exist"),
        (["iris.py", "--ts-config", "c.properties"], "--ts-config: c.properties does not exist"),
        (["iris.py", "--output", "iris.py"], "it exists, and `modelserver build` has not written it"),
    ],
)
def test_mistakes_are_explained(here, capsys, arguments, message):
    """Nothing is written then."""
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(here)) == ["data", "iris.py"]


def test_models_of_the_hub_need_transformers(here, monkeypatch):
    """And vLLM where it computes them."""
    (here / "bert").mkdir()
    (here / "bert" / "config.json").write_text('{"model_type": "bert"}')
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    source, extras = find_source(build_parser().parse_args(["bert", "--task", "rerank", "--trust"]))

    assert (source.single, source.query) == (None, "?task=rerank&trust_remote_code=true")
    assert extras == ("modelserver[transformers]", "transformers")
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    for engine, expected in (("auto", True), ("vllm", True), ("transformers", False)):
        _, extras = find_source(build_parser().parse_args(["bert", "--engine", engine]))
        assert ("vllm" in extras) == expected
