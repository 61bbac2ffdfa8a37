"""Entry point of an observed worker: ``python -m modelserver.tools.doctor.worker SOCKET_FD SERVER_PID``."""

import gc

# The worker's entry point does the same.
gc.disable()

from modelserver.tools.doctor.worker.observer import main  # noqa: E402

gc.enable()

main()
