import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes send signals on Linux only")

SCRIPT = """
import sys, time
from modelserver.ext.forking.child import die_when_closed
die_when_closed(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(60)
"""


def start(reading: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(reading)], pass_fds=[reading], stdout=subprocess.PIPE, text=True
    )


def test_a_process_dies_when_its_pipe_is_closed():
    """It cannot catch or put off the signal, and until then nothing happens to it (F48)."""
    reading, writing = os.pipe()
    with start(reading) as process:
        os.close(reading)
        assert process.stdout.readline() == "alive\n"
        assert process.poll() is None
        os.close(writing)

        assert process.wait(10) == -signal.SIGKILL


def test_a_pipe_may_be_closed_already():
    reading, writing = os.pipe()
    os.close(writing)
    with start(reading) as process:
        os.close(reading)

        assert process.wait(10) == 1
