import shlex

import pytest

from modelserver.errors import ConfigError
from modelserver.run import cli
from modelserver.run.cli import build_parser, check, setting_flags


@pytest.fixture(autouse=True)
def temp(tmp_path, monkeypatch):
    """A directory of one's own, without variables that steer the server."""
    monkeypatch.chdir(tmp_path)
    for name in ("TS_CONFIG_FILE", "TEMP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_flags_of_torchserve_are_read():
    options = build_parser().parse_args(
        shlex.split(
            "--start --ts-config c --model-store s --models a.mar b=c.mar --ncs --dt --enable-model-api"
            " --foreground --ppath p --workflow-store w --log-config l --cpp-log-config x --otel all"
        )
    )

    assert {name: value for name, value in setting_flags(options).items() if value} == {
        "ts_config": "c",
        "model_store": "s",
        "workflow_store": "w",
        "load_models": ["a.mar", "b=c.mar"],
        "disable_token_authorization": True,
        "enable_model_api": True,
        "otel": "all",
    }
    assert (options.foreground, options.no_config_snapshots, options.plugins_path) == (True, True, "p")

    flags = setting_flags(build_parser().parse_args([]))

    assert not any(flags.values())


def refusal(*arguments):
    with pytest.raises(ConfigError) as caught:
        check(build_parser().parse_args(arguments), {})
    return str(caught.value)


def test_checks_are_made_in_order(temp, monkeypatch):
    """Errors are reported in the order of reference 2.1, one at a time."""
    flags = ["--log-config", "l", "--ts-config", "c", "--model-store", "s"]
    monkeypatch.setenv("TEMP", str(temp / "nowhere"))

    assert refusal(*flags) == f"--log-config file not found: {temp / 'l'}"
    (temp / "l").touch()
    message = f"Invalid temp directory: {temp / 'nowhere'}, please check TEMP environment variable."
    assert refusal(*flags) == message
    monkeypatch.setenv("TEMP", str(temp))
    assert refusal(*flags) == "--ts-config file not found: c"
    (temp / "c").touch()
    assert refusal(*flags) == "--model-store directory not found: s"
    assert refusal(*flags[:4]) == "Missing mandatory parameter --model-store"
    (temp / "s").mkdir()
    assert check(build_parser().parse_args(flags), {}).settings.model_store == temp / "s"


def test_missing_folder_for_temporary_files_stops_the_start(monkeypatch):
    """This happens in a read-only container without a volume: the line names the folders that were tried."""

    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", refuse)

    assert refusal() == (
        "No usable temporary directory found in ['/tmp', '/var/tmp']: one must be writable, "
        "in a read-only container a volume at /tmp (--tmpfs /tmp:exec)."
    )


def test_warnings_are_printed_line_by_line(temp, capsys):
    (temp / "c").write_text("job_que_size=3\n")
    options = build_parser().parse_args(
        ["--ts-config", "c", "--model-store", ".", "--ppath", "x", "--print-settings"]
    )
    cli.print_start(options, check(options, {}))
    lines = capsys.readouterr().out.splitlines()

    assert [line for line in lines if line.startswith("Warning: ")] == [
        "Warning: --plugins-path names plugins for a Java server; it has no effect here.",
        "Warning: job_que_size is not a known setting and is ignored; did you mean job_queue_size?",
    ]
    assert f"model_store = {temp} (flag --model-store)" in lines
