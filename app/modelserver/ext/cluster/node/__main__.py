"""An agent as a process: ``python -m modelserver.ext.cluster.node NODE_NAME PARENT_PID``.

Its invitation is on stdin.
"""

import logging
import sys

from modelserver.engine.worker.parent import die_with
from modelserver.ext.cluster.node.agent import run

die_with(int(sys.argv[2]))
logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
run(sys.stdin.readline(), sys.argv[1])
