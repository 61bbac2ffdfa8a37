import shlex
import stat

import pytest

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings
from modelserver.tools.migrate.calls import MigrationError
from modelserver.tools.migrate.installation import launch_modelserver, launch_torchserve, read_installation


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchserve", "python"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(stat.S_IRWXU)
    return folder / "torchserve"


def test_flags_of_the_command_count(tmp_path):
    config = tmp_path / "config.properties"
    config.write_text("job_queue_size=7\n")
    command = f"torchserve --start --ncs --model-store {tmp_path} --models m=a.mar b.mar --log-config x.xml"
    installation = read_installation(config, command, {}, {})

    assert installation.store == tmp_path
    assert list(map(str, installation.loaded.settings.load_models)) == ["m=a.mar", "b.mar"]
    flags = "--start --no-config-snapshots --model-store --models --log-config"
    assert installation.flags == flags.split()


@pytest.mark.parametrize(
    ("text", "command", "error", "message"),
    [
        ("", "torchserve", ConfigError, "has no model_store"),
        ("model_store=.\n", "torchserve 'x", MigrationError, "No closing quotation"),
        ("model_store=.\n", "", MigrationError, "a URL or a command"),
        ("job_queue_size=x\n", None, ConfigError, "job_queue_size=x"),
    ],
)
def test_what_cannot_be_read_is_reported(tmp_path, text, command, error, message):
    config = tmp_path / "config.properties"
    config.write_text(text)
    with pytest.raises(error, match=message):
        read_installation(config, command, {}, {})


def test_both_servers_get_the_same_configuration_elsewhere(site, program, tmp_path):
    installation = read_installation(site, f"{program} --ts-config other --log-config mine.xml", {}, {})
    reference = launch_torchserve(installation, tmp_path / "theirs")
    ours = launch_modelserver(installation, tmp_path / "ours")
    configs = [tmp_path / name / "config.properties" for name in ("theirs", "ours")]
    before, *after = (
        load_settings({"ts_config": str(config)}, {}, tmp_path).settings for config in (site, *configs)
    )

    flags = f"--log-config mine.xml --start --foreground --ncs --ts-config {configs[0]}"
    assert shlex.join(reference.command) == f"{program} {flags} --model-store {installation.store}"
    assert reference.environment["PATH"].startswith(f"{program.parent}:")
    for launch, settings in zip((reference, ours), after, strict=True):
        assert (settings.model_store, settings.models) == (before.model_store, before.models)
        assert settings.disable_token_authorization
        address = settings.inference_address
        assert (address.host, address.port) == launch.addresses["inference"] != ("127.0.0.1", 8080)
        assert launch.environment["LOG_LOCATION"].startswith(str(tmp_path))
    assert not {*reference.addresses.values()} & {*ours.addresses.values()}


def test_what_the_environment_says_is_written_down(tmp_path):
    """Variables are not passed on: those that name addresses would count more than the free ports."""
    config = tmp_path / "config.properties"
    config.write_text("enable_envvars_config=true\nmodel_store=.\n")
    variables = {"TS_CONFIG_FILE": "absent", "TS_JOB_QUEUE_SIZE": "33"}
    variables["TS_INFERENCE_ADDRESS"] = "http://0.0.0.0:9000"
    launch = launch_modelserver(read_installation(config, None, {}, variables), tmp_path / "ours")
    settings = load_settings({"ts_config": launch.command[-1]}, {}, tmp_path).settings

    assert settings.job_queue_size == 33
    assert settings.inference_address.port == launch.addresses["inference"][1]


def test_model_api_is_on_beside_a_running_torchserve(site, tmp_path):
    """Beside a running TorchServe the model API is on, whatever the configuration says."""
    installation = read_installation(site, None, {"compat_defaults": "torchserve"}, {})
    for follows in (False, True):
        launch = launch_modelserver(installation, tmp_path / str(follows), follows=follows)
        settings = load_settings({"ts_config": launch.command[-1]}, {}, tmp_path).settings
        assert settings.enable_model_api is follows
    absent = read_installation(site, "/nowhere/torchserve", {}, {})
    with pytest.raises(MigrationError, match="there is no program /nowhere/torchserve"):
        launch_torchserve(absent, tmp_path / "theirs")


def test_only_plain_http_can_be_compared(tmp_path):
    config = tmp_path / "config.properties"
    config.write_text(
        "model_store=.\nmanagement_address=http://127.0.0.1:9001\nmetrics_address=https://127.0.0.1:1\n"
    )
    installation = read_installation(config, None, {}, {})

    assert installation.address("management", "serving") == ("serving", 9001)
    with pytest.raises(MigrationError, match="a plain HTTP address is needed"):
        installation.address("metrics", "serving")
