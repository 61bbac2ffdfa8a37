"""Entry point of a worker process: ``python -m modelserver.engine.worker SOCKET_FD SERVER_PID``."""

import gc

# A seventh of the time of the imports.
gc.disable()

from modelserver.engine.worker.runtime import main  # noqa: E402

gc.enable()

main()
