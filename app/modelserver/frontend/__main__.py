"""Entry point: ``python -m modelserver.frontend SEAT SEATS LINK_FD LISTENER_FD BOARD_FD [ARENA_FD]``."""

import signal

# Signals that reach all processes are for the server, which says when it is time to end. Already while the
# imports below take their time.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.frontend.process import main  # noqa: E402

main()
