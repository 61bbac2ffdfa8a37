"""An agent as a process: ``python -m modelserver.node NODE_NAME PARENT_PID``; its invitation is on stdin."""

import logging
import sys

from modelserver.node.agent import run
from modelserver.worker.parent import die_with

die_with(int(sys.argv[2]))
logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
run(sys.stdin.readline(), sys.argv[1])
