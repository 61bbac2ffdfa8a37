import os
import signal
import subprocess
import sys

import pytest

from modelserver.ext.forking.child import exit_code

IN_A_CHILD = """
import os, sys
from modelserver.ext.forking import child
{before}
pid = os.fork()
if pid == 0:
    {inside}
    sys.stdout.flush()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def run(before, inside, **environment):
    """What a fork of a process of its own prints."""
    script = IN_A_CHILD.format(before=before, inside=inside)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("message", "code"), [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), (True, 1), ("x", 1)]
)
def test_exit_codes_are_an_interpreters(message, code):
    assert exit_code(message) == code


def test_the_environment_is_replaced():
    inside = (
        "import time; kept = {'PATH': os.environ['PATH']};"
        " child.replace_environment({**kept, 'NEW': '1', 'TZ': 'UTC-7'});"
        " print(sorted(os.environ), time.timezone, flush=True); os.system('echo $OLD-$NEW')"
    )

    assert run("", inside, OLD="1", TZ="UTC").splitlines() == ["['NEW', 'PATH', 'TZ'] -25200", "-1"]


def test_the_command_of_another_length_is_left_alone():
    inside = (
        "from pathlib import Path; line = lambda: Path('/proc/self/cmdline').read_bytes(); old = line();"
        " child.show_command('m' * 4000, '7', '8'); print(line() == old)"
    )

    assert run("", inside) == "True"


@pytest.mark.slow  # imports torch in a new process
def test_torch_is_as_fresh_in_a_fork():
    before = "import torch, numpy.random as n"
    inside = (
        "show = lambda: print(torch.rand(1).item(), n.rand(), flush=True);"
        " os.waitpid(os.fork() or (child.reseed(), show(), os._exit(0)), 0); "
        " child.set_threads(1);"
        " print(torch.rand(1).item(), n.rand(), torch.get_num_threads(), torch.cuda.is_initialized());"
        " torch.randn(999, 999) @ torch.randn(999, 999); print(len(os.listdir('/proc/self/task')))"
    )
    inner, outer, threads = run(before, inside, OPENBLAS_NUM_THREADS="1").splitlines()

    assert set(inner.split()).isdisjoint(outer.split())
    assert outer.split()[2:] == ["1", "False"]
    assert threads == "1"


LIFE = """
import sys, time
from modelserver.ext.forking.child import die_when_closed
die_when_closed(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(60)
"""


def start(reading):
    return subprocess.Popen(
        [sys.executable, "-c", LIFE, str(reading)], pass_fds=[reading], stdout=subprocess.PIPE, text=True
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
