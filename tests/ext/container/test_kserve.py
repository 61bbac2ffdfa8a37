"""What KServe leaves in a container, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.errors import ConfigError
from modelserver.ext.container.kserve import Layout, Ports, configuration, find_layout
from modelserver.models.settings.properties import parse

if TYPE_CHECKING:
    from pathlib import Path


def put(folder: Path, *names: str) -> Path:
    """Empty files of these names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


# Layouts


def test_torchserves_layout_is_found(tmp_path: Path) -> None:
    """The configuration in ``config``, archives in ``model-store``."""
    put(tmp_path, "config/config.properties", "model-store/b.mar", "model-store/a.mar")

    found = find_layout(tmp_path, "service")

    assert found == Layout(tmp_path / "model-store", "a.mar,b.mar", tmp_path / "config" / "config.properties")


def test_a_lone_archive_gets_the_services_name(tmp_path: Path) -> None:
    """Where no configuration gives it one."""
    assert find_layout(put(tmp_path, "mnist.mar"), "service") == Layout(tmp_path, "service=mnist.mar")


def test_several_archives_keep_their_names(tmp_path: Path) -> None:
    """What lies beside them and is no archive is not loaded."""
    put(tmp_path, "a.mar", "b.tgz", "c.tar.gz", "notes.txt", "images/x.png", "d/MAR-INF/MANIFEST.json")

    assert find_layout(tmp_path, "service").load == "a.mar,b.tgz,c.tar.gz,d"


def test_a_store_without_configuration_is_found(tmp_path: Path) -> None:
    """``model-store`` alone."""
    put(tmp_path, "model-store/mnist.mar")

    assert find_layout(tmp_path, "service") == Layout(tmp_path / "model-store", "service=mnist.mar")


def test_an_unpacked_archive_is_found(tmp_path: Path) -> None:
    """A .tgz comes unpacked out of KServe's storage initializer."""
    folder = put(tmp_path / "models", "MAR-INF/MANIFEST.json", "model.py")

    assert find_layout(folder, "service") == Layout(tmp_path, "service=models")
    assert find_layout(folder) == Layout(tmp_path, "models")


def test_given_places_win(tmp_path: Path) -> None:
    """``--model-store`` and ``--ts-config``, as KServe's runtime gives them."""
    put(tmp_path, "a.mar", "elsewhere/b.mar", "other.properties")
    store, config = tmp_path / "elsewhere", tmp_path / "other.properties"

    assert find_layout(tmp_path, "service", store=store, config=config) == Layout(store, "b.mar", config)


@pytest.mark.parametrize("names", [(), ("model.pt",), ("model-store/model.pt",)])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """The message says what was looked for."""
    put(tmp_path, *names)

    with pytest.raises(ConfigError, match=r"No model in .*config/config\.properties.*MAR-INF"):
        find_layout(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """In one line with the reason."""
    with pytest.raises(ConfigError, match="missing cannot be read"):
        find_layout(tmp_path / "missing")


# Configurations


def made(folder: Path, text: str, ports: Ports | None = None) -> dict[str, str]:
    """The settings that are made of a configuration."""
    config = folder / "config.properties"
    config.write_bytes(text.encode())
    return parse(configuration(Layout(folder, "a.mar", config), ports or Ports()))


def test_addresses_are_those_of_a_pod(tmp_path: Path) -> None:
    """The file's were for the wrapper that stood in front of TorchServe; management stays in the pod."""
    addresses = "inference_address=http://0.0.0.0:8085\nmanagement_address=http://0.0.0.0:8085\n"
    settings = made(tmp_path, addresses + "grpc_inference_port=7075\nbatch=1\n")

    assert settings == {
        "inference_address": "http://0.0.0.0:8080",
        "management_address": "http://127.0.0.1:8085",
        "metrics_address": "http://0.0.0.0:8082",
        "grpc_inference_address": "0.0.0.0",
        "grpc_management_address": "127.0.0.1",
        "grpc_inference_port": "7075",
        "enable_envvars_config": "true",
        "load_models": "a.mar",
        "log_files": "false",
        "log_probes": "false",
        "batch": "1",
    }


def test_logs_can_be_files(tmp_path: Path) -> None:
    """Where the configuration says so; else they are only printed, without probes."""
    assert made(tmp_path, "log_files=true\n")["log_files"] == "true"


def test_ports_can_be_chosen(tmp_path: Path) -> None:
    """That of gRPC wins over the file's."""
    settings = made(tmp_path, "grpc_inference_port=7070\n", Ports(http=9000, grpc=9001))

    assert settings["inference_address"] == "http://0.0.0.0:9000"
    assert settings["grpc_inference_port"] == "9001"


def test_tls_stays(tmp_path: Path) -> None:
    """A file that wants https is served over https."""
    assert made(tmp_path, "inference_address=https://127.0.0.1:8443\n")["inference_address"].startswith(
        "https:"
    )


@pytest.mark.parametrize("named", ["load_models=all", "model_snapshot={}", "load_models : x=b.mar"])
def test_models_that_the_file_names_are_the_files(tmp_path: Path, named: str) -> None:
    """Nothing is added to them."""
    settings = made(tmp_path, f"{named}\n")

    assert "a.mar" not in settings.values()


def test_an_open_last_line_swallows_nothing(tmp_path: Path) -> None:
    """A backslash at the end of the file goes on into an empty line."""
    settings = made(tmp_path, "load_models=x.mar,\\")

    assert settings["load_models"] == "x.mar,"
    assert settings["enable_envvars_config"] == "true"


def test_no_configuration_is_one_too(tmp_path: Path) -> None:
    """The archives that were found are loaded."""
    settings = parse(configuration(Layout(tmp_path, "übung=ü.mar"), Ports()))

    assert settings["load_models"] == "übung=ü.mar"


def test_a_configuration_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """With its name and the reason."""
    with pytest.raises(ConfigError, match=r"missing\.properties"):
        configuration(Layout(tmp_path, "a.mar", tmp_path / "missing.properties"), Ports())
