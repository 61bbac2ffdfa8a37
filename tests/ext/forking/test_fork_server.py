import os
import shutil
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest
from tests.engine.pools.conftest import Conversation
from tests.ext.forking.conftest import HEAVY, preloaded

from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.pools.variables import THREAD_VARIABLES
from modelserver.engine.wire.messages import Load, Loaded
from modelserver.ext.forking import fork_server
from modelserver.ext.forking.messages import Prepare
from modelserver.ext.forking.spawner import can_fork, why_not

pytestmark = pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely")


@pytest.mark.parametrize("file", ["codeop.py", "codeop/__init__.py"])
async def test_modules_of_the_model_come_first(spawner, tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine = True\n")
    (tmp_path / "h.py").write_text(
        f"import {HEAVY}\ndef handle(data, context):\n    import codeop; codeop.mine\n"
    )
    # It loads codeop.
    other = tmp_path / "other"
    other.mkdir()
    (other / "h.py").write_text(f"import {HEAVY}, code\ndef handle(data, context):\n    return data\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelserver.ext.forking.preloading.HEAVY", frozenset({HEAVY, "code"}))
        before = await Conversation(spawner).start(other)
    talk = await Conversation(spawner).start(tmp_path)
    outcome, _ = await talk.next()

    assert before.parent() != os.getpid()
    assert talk.parent() == os.getpid()
    assert isinstance(outcome, Loaded)
    for each in (before, talk):
        each.process.kill()
        await each.process.wait()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "1 thread",
        ),
        ("import os\nos.pipe()", "descriptors"),
        ("raise ValueError('broken')", "ValueError while importing preloaded"),
    ],
)
async def test_an_unfit_spawner_refuses(spawner, tmp_path, monkeypatch, caplog, source, reason):
    model = preloaded(monkeypatch, tmp_path, source)
    caplog.set_level("INFO", "modelserver.workers")
    for _ in range(2):
        talk = await Conversation(spawner).start(model)
        outcome, _ = await talk.next()
        assert isinstance(outcome, Loaded)
        assert talk.parent() == os.getpid()
        talk.process.kill()
        await talk.process.wait()

    (line,) = [r.getMessage() for r in caplog.records if "not forked" in r.getMessage()]
    assert reason in line


def test_handlers_import_for_their_workers(tmp_path, monkeypatch):
    """What a built-in handler imports only when it loads is imported once, before workers are forked."""
    here, peer = socket.socketpair()
    ours, foreign = "modelserver_handlers.late", "torchaudio"
    modules = {name: Mock(spec=["preload"]) for name in (ours, foreign)}
    monkeypatch.setattr(fork_server.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(fork_server, "gc", Mock())
    with here, peer:
        server = fork_server.ForkServer(here, os.getpid())
        server._prepare(Prepare(str(tmp_path), ours, [foreign]))

    assert modules[ours].preload.call_count == 1
    assert modules[foreign].preload.call_count == 0


def spec(**fields):
    return WorkerSpec(load=Load("m", "1.0", "/", "h.py", 1), frame_limit=100, **{"threads": 3, **fields})


def test_only_some_workers_may_be_forked():
    def reason(threads=("3", "3", "3"), **fields):
        return why_not(spec(**fields), dict(zip(THREAD_VARIABLES, threads, strict=True)))

    assert reason(extra_environment={"CUDA_VISIBLE_DEVICES": "1"}) == ""
    assert "Python of their own" in reason(python="/usr/bin/python3")
    assert "install_py_dep_per_model" in reason(extra_environment={"PYTHONPATH": "/m/packages"})
    assert "LD_PRELOAD must" in reason(extra_environment={"LD_PRELOAD": "x.so"})
    assert reason(("5", "5", "5")) == ""
    for threads in (("5", "3", "3"), ("4,2", "4,2", "4,2"), ("0", "0", "0")):
        assert "one and the same" in reason(threads)


# A driver that has no GPU, and records its calls.
_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
static void note(const char *name) {
    FILE *file = fopen(getenv("CALLS_OF_DRIVER"), "a");
    fprintf(file, "%s\\n", name);
    fclose(file);
}
int cuDriverGetVersion(int *version) { note("cuDriverGetVersion"); *version = 20000; return 0; }
int cuInit(unsigned flags) { note("cuInit"); return 100; }
"""
_CONTROL = """
def calls():
    with open(os.environ["CALLS_OF_DRIVER"]) as file:
        return file.read().split()

imports = calls()
torch.cuda.is_available()
print(torch.version.cuda, len(imports), len(calls()))
"""


@pytest.mark.slow  # imports all that handlers do in a new process
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_imports_leave_the_gpu_alone(tmp_path):
    """Those of torch, torchvision, transformers and all built-in handlers start no thread, hold no
    descriptor and make no call of NVIDIA's driver, as asking whether there is a GPU would: a child can still
    use it.
    """
    from benchmarks.gpu_probes import IMPORTS
    from benchmarks.servers import ROOT

    (tmp_path / "driver.c").write_text(_DRIVER)
    (tmp_path / "calls").touch()
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    variables = {
        "CALLS_OF_DRIVER": str(tmp_path / "calls"),
        "LD_LIBRARY_PATH": str(tmp_path),
        "OPENBLAS_NUM_THREADS": "1",  # as the spawner's
    }
    command = [sys.executable, "-W", "ignore", "-c", IMPORTS + _CONTROL]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    cuda, imports, control = done.stdout.split()
    if cuda == "None":
        pytest.skip("this torch is for processors only")
    assert int(imports) == 0
    assert int(control) > 0
