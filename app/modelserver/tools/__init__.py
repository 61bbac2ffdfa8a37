"""The commands beside the server, each imported only when it is used.

Its module has ``main``, which gets the arguments after the name and returns the exit status, and
``build_parser``.
"""

from typing import Final

COMMANDS: Final = {
    "serve": ("modelserver.tools.serve.command", "serve one script or model file, in the foreground"),
    "llm": ("modelserver.tools.llm", "serve a language model with vLLM"),
    "check": ("modelserver.tools.doctor.command", "find what would hurt in a handler"),
    "build": ("modelserver.tools.build.command", "write the context of a container image for one model"),
    "tune": ("modelserver.tools.tune.command", "find batch size, workers and threads on this machine"),
    "migrate": ("modelserver.tools.migrate.command", "compare with a TorchServe before switching"),
    "record": ("modelserver.tools.replay.record", "keep the traffic of a running server in a file"),
    "replay": ("modelserver.tools.replay.command", "send it again"),
    "status": ("modelserver.tools.status.command", "say what is wrong with a running server"),
}
"""By name: the module, and what it does."""
