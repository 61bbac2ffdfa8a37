"""The server's side of Ray, with played helpers instead of Ray."""

import asyncio
import json
import logging
import os
import socket
import sys
import textwrap
from pathlib import Path

import pytest
from tests.waiting import until

import modelserver
from modelserver.engine.demand import Demand
from modelserver.ext.cluster import ray_placer
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.ray_placer import RayPlacer, options_of

_HELPER = """#!{python} -IS
import json, os, signal, sys, time
folder = {folder!r}
os.closerange(3, 1024)
def say(kind, **fields):
    print(json.dumps(dict(type=kind, **fields)), flush=True)
def join(version={version!r}):
    say("joined", ray="2.60.0", modelserver=version, nodes=3)
def requests():
    for line in sys.stdin:
        with open(folder + "/requests", "a") as log:
            log.write(line)
        yield json.loads(line)
with open(folder + "/starts", "a") as log:
    log.write(json.dumps(dict(argv=sys.argv[1:], environ=dict(os.environ), pid=os.getpid(), sid=os.getsid(0),
                              )) + "\\n")
starts = len(open(folder + "/starts").readlines())
{body}
"""
_OBEDIENT = """
join()
for request in requests():
    if request["type"] == "place" and not request["options"]["num_gpus"]:
        say("placed", id=request["id"])
"""


class Played:
    """A helper that does as a text says; ``python`` is what to start it with."""

    def __init__(self, folder, body):
        self._folder = folder
        self.python = folder / "python"
        self.play(body)
        self.python.chmod(0o755)

    def play(self, body):
        self.python.write_text(
            _HELPER.format(
                python=sys.executable,
                folder=str(self._folder),
                version=modelserver.__version__,
                body=textwrap.dedent(body),
            )
        )

    def _lines(self, name):
        path = self._folder / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # The last one may still be written.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def starts(self):
        return self._lines("starts")

    def requests_of(self, kind):
        return [request for request in self._lines("requests") if request["type"] == kind]


def runs(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A helper that finds a machine for all that ask for no GPU; others follow it after short pauses."""
    monkeypatch.setattr(ray_placer, "_FIRST_PAUSE", 0.01)
    return Played(tmp_path, _OBEDIENT)


@pytest.fixture
def address():
    """Where something accepts connections, as Ray's GCS would."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def placer(played, address):
    made = RayPlacer(address, str(played.python))
    yield made
    await made.close()


_WAITING = Demand(num_gpus=1)


def test_a_demand_becomes_an_actors_options():
    everything = Demand(0.5, 2, 1 << 30, {"disk": 1}, {"zone": "in(a, b)"}, "pack")

    assert options_of(Demand()) == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert options_of(everything) == {
        "num_cpus": 0.5,
        "num_gpus": 2,
        "memory": 1 << 30,
        "resources": {"disk": 1},
        "label_selector": {"zone": "in(a, b)"},
    }


async def test_a_place_is_requested_and_withdrawn(placer, played):
    first = await placer.place(["{}"], Demand(), "W-9000-a_1.0")
    second = await placer.place(["{}"], Demand(placement="pack"), "W-9000-a_1.0")
    await until(lambda: first.placed and second.placed)
    first.withdraw()
    first.withdraw()
    await until(lambda: played.requests_of("withdraw"))

    assert await first.ended == "it was withdrawn"
    assert not second.ended.done()
    assert first.name != second.name
    assert first.name.startswith("W-9000-a_1.0:")
    assert [request["name"] for request in played.requests_of("withdraw")] == [first.name]
    assert [request["options"] for request in played.requests_of("place")] == [
        {**options_of(Demand()), "scheduling_strategy": strategy} for strategy in ("SPREAD", "DEFAULT")
    ]


async def test_the_agents_of_a_workers_ranks_are_a_group(placer, played):
    played.play("""
        join()
        for request in requests():
            if request["type"] == "place":
                say("ended", id=request["id"], how="its agent ended", left=1)
    """)
    packed = await placer.place(["{}", "{}"], Demand(placement="pack"), "W")
    assert await packed.ended == "its place on Ray is gone: its agent ended"
    assert not played.requests_of("withdraw")
    spread = await placer.place(["{}", "{}"], Demand(), "W")
    for place in (packed, spread, packed):
        place.withdraw()
    await until(lambda: len(played.requests_of("withdraw")) == 2)

    requests = played.requests_of("place")
    assert [request["strategy"] for request in requests] == ["PACK", "SPREAD"]
    assert [request["options"] for request in requests] == [options_of(Demand())] * 2
    assert [(request["name"], request["ranks"]) for request in played.requests_of("withdraw")] == [
        (packed.name, 2),
        (spread.name, 2),
    ]


async def test_the_helper_gets_what_it_needs_only(placer, played, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TS_KEYSTORE_PASS", "hush")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    await placer.place(["the-invitation"], Demand(), "W")
    (start,) = played.starts

    assert start["sid"] == start["pid"]
    assert start["argv"][:2] == ["-m", "modelserver.ext.cluster.ray_helper"]
    assert start["argv"][2:] == [placer._address, str(os.getpid())]
    assert "TS_KEYSTORE_PASS" not in start["environ"]
    assert start["environ"]["RAY_AUTH_MODE"] == "token"
    assert "the-invitation" not in json.dumps(start) + caplog.text
    await until(lambda: played.requests_of("place"))
    assert played.requests_of("place")[0]["invitations"] == ["the-invitation"]


@pytest.mark.parametrize("address", ["", "6379", "ray://10.0.0.1:10001", "host:port", "host:99999", "auto"])
async def test_an_address_has_host_and_port(address):
    placer = RayPlacer(address)
    with pytest.raises(NoPlace, match=r"ray_address=.* is not HOST:PORT"):
        await placer.place(["{}"], Demand(), "W")
    await placer.close()


async def test_an_address_that_leads_nowhere_is_reported_until_ray_is_there(played, address, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    placer = RayPlacer(f"127.0.0.1:{port}", str(played.python))
    for _ in range(3):
        with pytest.raises(NoPlace, match=f"no Ray cluster answers at 127.0.0.1:{port}: "):
            await placer.place(["{}"], Demand(), "W")
        await asyncio.sleep(0.05)
    assert placer.situation().startswith("no Ray cluster answers")
    assert played.starts == []
    with socket.create_server(("127.0.0.1", port)):
        await until(lambda: not placer.situation())
        place = await placer.place(["{}"], Demand(), "W")
        await until(lambda: place.placed)
        await placer.close()

    assert caplog.text.count("no Ray cluster answers") == 1


async def test_an_address_without_an_answer_is_abandoned(played, monkeypatch):
    monkeypatch.setattr(ray_placer, "_REACH_PATIENCE", 0.05)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        placer = RayPlacer(f"127.0.0.1:{address[1]}", str(played.python))
        with pytest.raises(NoPlace, match=r"no answer in 0\.05 s"):
            await placer.place(["{}"], Demand(), "W")
        await placer.close()
        for filler in fillers:
            filler.close()


async def test_a_refusal_is_passed_on(placer, played, caplog):
    played.play("say('refused', reason='another version: 1 and 2')")
    with pytest.raises(NoPlace, match=r"^another version: 1 and 2$"):
        await placer.place(["{}"], Demand(), "W")
    await until(lambda: len(played.starts) > 2)

    assert caplog.text.count("another version: 1 and 2") == 1


async def test_a_python_that_is_none_is_reported(address, tmp_path):
    """A ``ray_python`` that cannot be started, or has no modelserver, is named in one line."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    for path, reason in (
        (tmp_path / "none", r"^ray_python \(.*none\) cannot be started.*$"),
        (python, r"^.*ended with 1: .*No module named 'modelserver'.*$"),
    ):
        placer = RayPlacer(address, str(path))
        with pytest.raises(NoPlace, match=reason) as refused:
            await placer.place(["{}"], Demand(), "W")
        await placer.close()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "join('9.9.9')\ntime.sleep(60)",
            rf"has modelserver 9\.9\.9, the server is {modelserver.__version__}",
        ),
        (
            r"""
            sys.stderr.write("[E] Failed to connect\n*** StackTrace ***\n/lib/libc.so.6(+0x10) [0x7f]\n")
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            r"ended with -9: \[E\] Failed to connect$",
        ),
        ("time.sleep(600)", r"hangs: the helper could not join within 0\.5 s"),
    ],
    ids=["another modelserver", "Ray ends it", "cannot join"],
)
async def test_helper_that_does_not_join_is_ended(placer, played, monkeypatch, body, reason):
    monkeypatch.setattr(ray_placer, "JOIN_PATIENCE", 0.5 if "join" in reason else 60.0)
    played.play(body)
    with pytest.raises(NoPlace, match=reason):
        await placer.place(["{}"], Demand(), "W")

    await until(lambda: not runs(played.starts[0]["pid"]))


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended with -9"),
        ("time.sleep(600)", "said nothing within 0.5 s"),
        ("print('what?', flush=True); time.sleep(600)", "said what cannot be read"),
        ("print('x' * (2 << 20), flush=True); time.sleep(600)", "said what cannot be read"),
    ],
    ids=["killed", "hangs", "garbage", "too much"],
)
async def test_a_helper_that_fails_is_replaced(placer, played, monkeypatch, caplog, ending, how):
    monkeypatch.setattr(ray_placer, "SILENCE", 0.5)
    played.play(f"""
        join()
        if starts > 1:
            for request in requests():
                say("state")
                if request["type"] == "place":
                    say("placed", id=request["id"])
                if request["type"] == "watch":
                    while not os.path.exists(folder + "/dies"):
                        time.sleep(0.01)
                    say("ended", id=request["id"], how="it died")
            os._exit(0)
        some = requests()
        say("placed", id=next(some)["id"])
        next(some)
        {ending}
    """)
    placed = await placer.place(["{}"], Demand(), "W")
    waiting = await placer.place(["{}"], _WAITING, "W")
    assert how in await waiting.ended
    assert placed.placed
    assert not placed.ended.done()
    played.python.with_name("dies").touch()
    later = await placer.place(["{}"], Demand(), "W")
    await until(lambda: later.placed)

    assert await placed.ended == "its place on Ray is gone: it died"
    assert [request["name"] for request in played.requests_of("withdraw")] == [waiting.name]
    assert [request["name"] for request in played.requests_of("watch")] == [placed.name]
    assert caplog.text.count(how) == 1


async def test_what_is_withdrawn_without_a_helper_is_killed_by_the_next(placer, played, address):
    played.play("""
        join()
        some = requests()
        if starts == 1:
            say("placed", id=next(some)["id"])
            time.sleep(0.1)
            os._exit(3)
        for request in some:
            pass
    """)
    place = await placer.place(["{}"], Demand(), "W")
    await until(lambda: place.placed and placer._process is None)
    place.withdraw()
    await until(lambda: played.requests_of("withdraw"))

    assert played.requests_of("withdraw")[0]["name"] == place.name
    assert played.requests_of("watch") == []


async def test_while_ray_is_away_places_are_refused(placer, played, caplog):
    played.play("""
        join()
        some = requests()
        say("placed", id=next(some)["id"])
        next(some)
        while not os.path.exists(folder + "/back"):
            say("state", lost="nothing answers")
            time.sleep(0.02)
        say("state")
        for request in some:
            if request["type"] == "place":
                say("placed", id=request["id"])
    """)
    placed = await placer.place(["{}"], Demand(), "W")
    waiting = await placer.place(["{}"], _WAITING, "W")
    assert await waiting.ended == "Ray cannot be reached: nothing answers"
    for _ in range(3):
        with pytest.raises(NoPlace, match=r"^Ray cannot be reached: nothing answers$"):
            await placer.place(["{}"], Demand(), "W")
    assert placer.situation() == "Ray cannot be reached: nothing answers"
    assert not placed.ended.done()
    played.python.with_name("back").touch()
    await until(lambda: not placer.situation())
    later = await placer.place(["{}"], Demand(), "W")
    await until(lambda: later.placed)

    assert len(played.starts) == 1
    assert caplog.text.count("nothing answers") == 1


async def test_the_situation_is_reported_while_a_place_waits(placer, played, caplog):
    played.play("""
        join()
        for request in requests():
            for _ in range(3):
                say("state", situation="Ray has free 0 of 4 CPU", impossible="no node has 9 GPU")
    """)
    assert placer.situation() == ""
    place = await placer.place(["{}"], Demand(), "W")
    await until(placer.situation)

    assert placer.situation() == "Ray has free 0 of 4 CPU; no node has 9 GPU"
    place.withdraw()
    assert placer.situation() == ""
    assert caplog.text.count("no node has 9 GPU; waiting for such a node") == 1


async def test_closing_kills_the_actors_and_ends_the_helper(placer, played):
    places = [await placer.place(["{}"], Demand(), "W") for _ in range(3)]
    await placer.close()

    assert {request["name"] for request in played.requests_of("withdraw")} == {place.name for place in places}
    assert all(place.ended.done() for place in places)
    assert not runs(played.starts[0]["pid"])
    with pytest.raises(NoPlace, match="the server is stopping"):
        await placer.place(["{}"], Demand(), "W")


async def test_closing_waits_for_no_helper_that_hangs_or_was_never_started(placer, played, monkeypatch):
    monkeypatch.setattr(ray_placer, "_END_PATIENCE", 0.1)
    played.play("join()\ntime.sleep(600)")
    await placer.place(["{}"], Demand(), "W")
    await placer.close()

    assert not runs(played.starts[0]["pid"])
    await RayPlacer(placer._address, "/nowhere/python").close()
