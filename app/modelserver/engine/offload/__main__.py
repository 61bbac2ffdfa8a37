"""Entry point: ``python -m modelserver.engine.offload CONNECTION_FD MEMORY``."""

import signal

# Signals to the process group are for the server, which ends its helpers.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.engine.offload.process import main  # noqa: E402

main()
