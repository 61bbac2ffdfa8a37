"""Has 100 MB in a child process, whose id it answers."""

import subprocess
import sys

HOLD = "import sys; block = b'x' * (100 << 20); print(flush=True); sys.stdin.read()"

children = []


def handle(data, context):
    if data is None:
        command = [sys.executable, "-c", HOLD]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        children[0].stdout.readline()
        return None
    return [str(children[0].pid)] * len(data)
