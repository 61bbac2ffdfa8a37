"""Entry point of a worker process: ``python -m modelserver.worker SOCKET_FD SERVER_PID``."""

from modelserver.worker.runtime import main

main()
