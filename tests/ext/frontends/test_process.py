import asyncio
import logging
import subprocess
import sys
import time

from tests.ext.frontends.doubles import endpoints_of
from tests.waiting import until

from modelserver.engine.telemetry import stalls as stalls_module
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.ext.frontends import messages
from modelserver.ext.frontends.link import make_pair
from modelserver.ext.frontends.process import Frontend, LogToServer
from modelserver.ext.frontends.server_end import ServerEnd


def test_front_end_imports_little():
    program = (
        "import sys, modelserver.ext.frontends.process;"
        "print([m for m in ('torch', 'fastapi', 'starlette', 'pydantic', 'httpx', 'psutil', 'PIL', 'numpy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


async def test_records_reach_the_servers_log(caplog):
    end = ServerEnd(endpoints_of(), None)
    ended = asyncio.Event()
    frontend = Frontend(None, None, 0, ended.set)
    await join(end, frontend)
    logger = logging.Logger("modelserver.somewhere")  # noqa: LOG001 - not among those that pytest watches
    logger.addHandler(LogToServer(frontend.link))
    with caplog.at_level(logging.INFO):
        logger.info("said %s", "this", extra={"request_ids": ["a", "b"]})
        try:
            int("oh")
        except ValueError:
            logger.exception("failed")
        await until(lambda: len(caplog.records) == 2)
    end.link.abort()
    await asyncio.wait_for(ended.wait(), 5)

    one, second = caplog.records
    assert (one.name, one.levelno, one.getMessage()) == ("modelserver.somewhere", logging.INFO, "said this")
    assert (one.request_ids, second.request_ids) == (["a", "b"], [])
    assert second.levelno == logging.ERROR
    assert second.getMessage().startswith("failed\nTraceback")
    assert second.getMessage().endswith("'oh'")


async def test_stall_is_reported_to_the_server(monkeypatch):
    monkeypatch.setattr(stalls_module, "limit_tracebacks", lambda: None)
    stalls = []
    end = ServerEnd(endpoints_of(on_stall=stalls.append), None)
    frontend = Frontend(None, None, 0, lambda: None)
    await join(end, frontend)
    frontend.watch()
    await asyncio.sleep(0.05)
    enough = time.thread_time() + 0.2
    while time.thread_time() < enough:
        pass
    await until(lambda: stalls and max(stalls) >= 0.2)
    loop_watch.close()
    end.link.abort()


async def test_memory_of_large_answers_is_released():
    frontend = Frontend(None, None, 0, lambda: None)
    frontend._set_up(messages.Setup(1000, 1000, access=False, stamped=False, max_outgoing=2000))
    server = frontend._server
    assert server.outgoing.give_back == server.intake.give_back
    assert frontend._forwarder.on_freed == server.intake.freed
    assert server.outgoing.limit == 2000
    frontend._access.close()


async def join(end, frontend):
    loop = asyncio.get_running_loop()
    ours, other = make_pair()
    await loop.create_unix_connection(lambda: end.link, sock=ours)
    await loop.create_unix_connection(lambda: frontend.link, sock=other)
