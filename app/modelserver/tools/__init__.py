"""The commands beside the server, each imported only when it is used."""

from typing import Final

COMMANDS: Final = {
    "build": "modelserver.tools.build.command",
    "check": "modelserver.tools.doctor.command",
    "llm": "modelserver.tools.llm",
    "migrate": "modelserver.tools.migrate.command",
    "record": "modelserver.tools.replay.record",
    "replay": "modelserver.tools.replay.command",
    "serve": "modelserver.tools.serve.command",
    "status": "modelserver.tools.status.command",
    "tune": "modelserver.tools.tune.command",
}
