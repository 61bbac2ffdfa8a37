"""Entry point: ``python -m modelserver.ext.stores``."""

import signal

# Signals to the process group are for the server, which ends this process.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.ext.stores.process import main  # noqa: E402

main()
