"""Entry point: ``python -m modelserver.offload CONNECTION_FD MEMORY``."""

import signal

# Signals that reach all processes are for the server, which ends its helpers when it ends.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.offload.process import main  # noqa: E402

main()
