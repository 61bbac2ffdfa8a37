from modelserver.run.cli import build_parser
from modelserver_handlers.compat import launcher


def test_the_launcher_speaks_the_commands_language(monkeypatch):
    received = []
    monkeypatch.setattr(launcher.subprocess, "run", lambda command, check: received.append(command))
    launcher.start("store", "file", True, "plugins", True, "all", True)
    launcher.stop()

    parsed = [build_parser().parse_args(command[3:]) for command in received]
    assert (parsed[0].start, parsed[0].model_store, parsed[0].load_models) == (True, "store", ["all"])
    assert parsed[0].enable_model_api
    assert parsed[1].stop
