"""An agent as a process: ``python -m modelserver.ext.cluster.node NODE_NAME``.

Its invitation is on stdin. It ends when it has lost the connection to the server.
"""

import logging
import sys

from modelserver.ext.cluster.node.agent import run

logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
run(sys.stdin.readline(), sys.argv[1])
