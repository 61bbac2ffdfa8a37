"""Entry point of a front end; :mod:`modelserver.ext.frontends.process` says what its arguments are."""

import signal

# Signals sent to all processes are for the server, which tells front ends when to end. Before the imports
# below, which take time.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)

from modelserver.ext.frontends.process import main  # noqa: E402

main()
