"""Entry point: ``python -m modelserver.frontend SEAT SEATS LINK_FD LISTENER_FD COUNTS_FD [ARENA_FD]``."""

import signal

# Signals sent to all processes are for the server, which tells front ends when to end. Before the imports
# below, which take time.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.frontend.process import main  # noqa: E402

main()
