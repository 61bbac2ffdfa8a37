import pytest

from modelserver.errors import ConfigError
from modelserver.models.settings.properties import parse
from modelserver.tools.container.__main__ import Layout, configuration, find_layout


def put(folder, *names):
    """Empty files of these names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("names", "store", "load"),
    [
        ("config/config.properties model-store/b.mar model-store/a.mar", "model-store", "a.mar,b.mar"),
        ("mnist.mar", "", "service=mnist.mar"),
        ("a.mar b.tgz c.tar.gz notes.txt images/x.png d/MAR-INF/MANIFEST.json", "", "a.mar,b.tgz,c.tar.gz,d"),
        ("model-store/mnist.mar", "model-store", "service=mnist.mar"),
    ],
    ids=["TorchServe's", "a lone archive", "several archives", "a store without configuration"],
)
def test_layout_of_either_server_is_recognized(tmp_path, names, store, load):
    """TorchServe's has the configuration in ``config`` and archives in ``model-store``; a lone archive gets
    the service's name where no configuration gives it one. What is no archive is not loaded.
    """
    result = find_layout(put(tmp_path, *names.split()), "service")
    config = tmp_path / "config" / "config.properties"
    assert result == Layout(tmp_path / store, load, config if "config/" in names else None)


def test_unpacked_archive_and_named_places_are_recognized(tmp_path):
    """The storage initializer unpacks a .tgz; KServe's runtime gives ``--model-store``, ``--ts-config``."""
    folder = put(tmp_path / "models", "MAR-INF/MANIFEST.json", "model.py")

    assert find_layout(folder, "service") == Layout(tmp_path, "service=models")
    assert find_layout(folder) == Layout(tmp_path, "models")

    put(tmp_path, "a.mar", "elsewhere/b.mar", "other.properties")
    store, config = tmp_path / "elsewhere", tmp_path / "other.properties"

    assert find_layout(tmp_path, "service", store=store, config=config) == Layout(store, "b.mar", config)


@pytest.mark.parametrize("names", [(), ("model.pt",), ("model-store/model.pt",), None])
def test_folder_without_model_is_refused(tmp_path, names):
    folder = tmp_path / "missing" if names is None else put(tmp_path, *names)
    reason = (
        r"No model in .*config/config\.properties.*MAR-INF" if names is not None else "missing cannot be read"
    )

    with pytest.raises(ConfigError, match=reason):
        find_layout(folder)


def made(folder, text, **ports):
    config = folder / "config.properties"
    config.write_bytes(text.encode())
    return parse(configuration(Layout(folder, "a.mar", config), **ports))


def test_addresses_are_those_of_a_pod(tmp_path):
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


@pytest.mark.parametrize(
    ("text", "ports", "expected"),
    [
        ("log_files=true\n", {}, {"log_files": "true"}),
        (
            "grpc_inference_port=7070\n",
            {"http": 9000, "grpc": 9001},
            {"inference_address": "http://0.0.0.0:9000", "grpc_inference_port": "9001"},
        ),
        ("inference_address=https://127.0.0.1:8443\n", {}, {"inference_address": "https://0.0.0.0:8080"}),
        ("load_models=x.mar,\\", {}, {"load_models": "x.mar,", "enable_envvars_config": "true"}),
    ],
    ids=["logs are files", "ports", "TLS stays", "open last line"],
)
def test_configuration_is_adapted(tmp_path, text, ports, expected):
    """Chosen ports win; logs may be files, https stays; a backslash at the file's end swallows nothing."""
    assert made(tmp_path, text, **ports).items() >= expected.items()


@pytest.mark.parametrize("named", ["load_models=all", "model_snapshot={}", "load_models : x=b.mar"])
def test_models_that_the_file_names_are_the_files(tmp_path, named):
    settings = made(tmp_path, f"{named}\n")
    assert "a.mar" not in settings.values()


def test_configuration_may_be_missing_but_must_be_readable(tmp_path):
    settings = parse(configuration(Layout(tmp_path, "übung=ü.mar")))

    assert settings["load_models"] == "übung=ü.mar"

    with pytest.raises(ConfigError, match=r"missing\.properties"):
        configuration(Layout(tmp_path, "a.mar", tmp_path / "missing.properties"))
