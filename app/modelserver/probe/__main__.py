"""Entry point of an observed worker: ``python -m modelserver.probe SOCKET_FD SERVER_PID``."""

import gc

# As the worker's own.
gc.disable()

from modelserver.probe.observer import main  # noqa: E402

gc.enable()

main()
