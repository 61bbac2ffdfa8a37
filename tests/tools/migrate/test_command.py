import json

import pytest
from tests.tools.migrate.sites import playing

from modelserver.__main__ import main
from modelserver.tools.migrate import command


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(*_):
        raise AssertionError("nothing must be started")

    monkeypatch.setattr(command, "started", refuse)
    monkeypatch.setattr(command, "others_percent", lambda: 0.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--torchserve", "http://127.0.0.1:1"], "TorchServe does not list its models"),
        (["--torchserve", "https://127.0.0.1:1"], "--torchserve=https://127.0.0.1:1: an address such as"),
        (["--torchserve", "http://127.0.0.1:99999"], "--torchserve=http://127.0.0.1:99999: Port out of"),
        (["--torchserve", "/nowhere/torchserve"], "there is no program /nowhere/torchserve"),
        (["--torchserve", "torchserve", "--seconds", "-1"], "--seconds=-1: a number of at least 0"),
        (["--torchserve", "torchserve", "--seconds", "nan"], "--seconds=nan: a number of at least 0"),
        (["--torchserve", "torchserve", "--requests", "absent"], "--requests=absent: builtin, a folder"),
        (["--torchserve", "torchserve", "--requests", "traffic.msr"], "traffic.msr"),
        (["--torchserve", "torchserve", "--out", __file__], "a directory is needed"),
        (["--torchserve", "torchserve", "--out", f"{__file__}/out"], f"nothing can be written in {__file__}"),
        (["--torchserve", "http://127.0.0.1:1", "--key-file", __file__], "no key_file.json of TorchServe"),
    ],
)
def test_what_cannot_be_compared_is_reported(site, flags, message, capsys):
    assert main(["migrate", str(site), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_torchserve_must_be_named(site, capsys):
    """With status 2, as for any wrong command line; so must a configuration that is there."""
    absent = ["absent.properties", "--torchserve", "http://127.0.0.1:1"]
    assert main(["migrate", "--prove", *absent]) == 2
    assert capsys.readouterr().err == "--ts-config file not found: absent.properties\n"
    with pytest.raises(SystemExit) as ended:
        main(["migrate", str(site)])
    assert ended.value.code == 2


def test_tokens_are_read_from_torchserves_file(site, tmp_path):
    keys = tmp_path / "key_file.json"
    keys.write_text(json.dumps({name: {"key": f"of {name}"} for name in ("inference", "management", "API")}))

    assert command._tokens(keys) == {"inference": "of inference", "management": "of management"}
    with playing({}) as urls:
        assert main(["migrate", str(site), "--torchserve", urls["inference"], "--key-file", str(keys)]) == 2


def test_both_reports_are_written(proof, tmp_path):
    for _ in range(2):
        paths = command.write(tmp_path / "out", proof, {}, "config.properties")

    assert [path.name for path in paths] == ["report.html", "report.json"]
    assert json.loads(paths[1].read_text("utf-8"))["verdict"] == "unknown"
