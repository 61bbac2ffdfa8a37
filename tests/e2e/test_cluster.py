"""Workers as if on other machines: what works with them, and what their users meet when something breaks."""

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e import test_model_environments as environments
from tests.e2e.chunks import ChunkReader
from tests.e2e.conftest import MODEL_CODE
from tests.e2e.elsewhere import LOST, elsewhere, freezing, store_beside
from tests.e2e.load import Load
from tests.e2e.serving import archived, wait_until
from tests.e2e.test_distributed import CONFIG, SUMMING

pytestmark = pytest.mark.slow  # starts agents, and waits until they are missed

COUNTING = """
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None:
        return None
    context.metrics.get_metric("Words", MetricTypes.COUNTER).add_or_update(2, [context.model_name, "Model"])
    print("[METRICS]Steps.Count:3|#Level:Model|#type:COUNTER|#hostname:h,1700000000")
    return [b"x"] * len(data)
"""
METRICS = """
model_metrics:
  counter:
    - {name: Words, unit: count, dimensions: [ModelName, Level]}
    - {name: Steps, unit: Count, dimensions: [Level]}
"""
# Handlers of model_code under names of their own, with what their archives are configured with.
CONFIGURED = {
    "again": ("witness", "idempotent: true\nbatchSize: 4\n"),
    "taking-turns": ("turns", "continuousBatching: true\nbatchSize: 3\n"),
    "meetings": ("meeting", "asyncCommunication: true\nbatchSize: 1\n"),
    "summed": ("sums", "sequenceBatching: true\nmaxNumSequence: 8\nbatchSize: 4\n"),
    "stays": ("leaks", "resources: local\n"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """One for all tests that do not end it, with archives of its own beside the usual ones."""
    folder = tmp_path_factory.mktemp("c")
    store = store_beside(model_store, folder)
    for name, (handler, config) in CONFIGURED.items():
        archived(store, name, MODEL_CODE / f"{handler}.py", config=config)
    spread = CONFIG.format(processes=3, fails="null") + "placement: spread\n"
    archived(store, "summing", SUMMING, config=spread)
    archived(store, "counting", COUNTING)
    installed = f"--no-index\n./{environments.WHEEL}\n"
    environments.pack(store, "needy", environments.HANDLER, installed, answer=3)
    environments.pack(store, "failing", environments.HANDLER, "--no-index\nno-such-package-anywhere\n")
    (folder / "metrics.yaml").write_text(METRICS)
    settings = {"install_py_dep_per_model": "true", "metrics_config": folder / "metrics.yaml"}
    with elsewhere(folder, store, **settings) as one:
        yield one


@pytest.fixture
def model(server):
    names = []

    def registered(archive, **parameters):
        server.registered(f"{archive}.mar", **parameters)
        names.append(str(parameters.get("model_name", archive)))
        return names[-1]

    yield registered
    for name in names:
        server.unregister(name)


def loaded(server, name, clients=6):
    """Paced clients: as fast as they can, they would take the processors from agents and workers."""
    return Load(server, name, clients, pause=0.02)


# -- faults, under load


def test_lost_machines_are_replaced(server, model):
    """So are agents and workers that are killed, or frozen for longer than ``worker_lost_timeout``; each
    request gets exactly one answer, its own, and only what had begun there fails. With ``idempotent: true``
    that is tried again: no request fails.
    """
    name, twice = model("witness", batch_size=4, initial_workers=3), model("again", initial_workers=2)
    with loaded(server, name) as load, loaded(server, twice, clients=2) as idempotent:
        before = server.pids(name)
        server.agents(name)[0].kill()
        server.wait_replaced(name, before)
        before = server.pids(name)
        server.agents(name)[1].children()[0].kill()
        server.agents(twice)[0].kill()
        server.wait_replaced(name, before)
        frozen, before, began = server.agents(name)[2], server.pids(name), time.monotonic()
        with freezing(frozen, *frozen.children()):
            wait_until(lambda: server.pids(name) != before, "it is missed")
            assert time.monotonic() - began > LOST / 2
            server.wait_replaced(name, before)
        wait_until(lambda: not frozen.is_running(), "it notices that it was given up")
        wait_until(lambda: len(server.pids(twice)) == 2, "there are two again")
    assert load.wrong == idempotent.wrong == []
    assert set(idempotent.statuses) == {200}
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 3 * 3 * 4
    assert all("Worker died." in error for error in load.errors)


def test_short_pause_of_a_machine_costs_nothing(server, model):
    name = model("witness", batch_size=4, initial_workers=2)
    before = server.describe(name)["workers"]
    paused = server.agents(name)[0]
    with loaded(server, name) as load:
        with freezing(paused, *paused.children()):
            time.sleep(LOST / 3)
        load.more()
    assert set(load.statuses) == {200}
    assert load.wrong == []
    assert [each["pid"] for each in server.describe(name)["workers"]] == [each["pid"] for each in before]


def test_requests_without_a_machine_are_refused_at_once(server, model):
    """The responses have Retry-After, and requests are served again once there are machines."""
    name = model("witness", initial_workers=2)
    with loaded(server, name, clients=2) as load:
        # Clients that are paused may miss the moment.
        while not load.statuses[503]:
            before = server.pids(name)
            for agent in server.agents(name):
                agent.kill()
            server.wait_replaced(name, before, 2)
        load.more(1)
    assert load.wrong == []
    assert load.statuses[503]


def test_network_that_stalls_loses_no_answer(server, model):
    """Workers behind a slow network serve; a stall shorter than ``worker_lost_timeout`` costs nothing, after
    a longer one they are replaced, and what comes late from the old ones reaches nobody.
    """
    with server.detour() as proxy:
        name = model("witness", batch_size=4, initial_workers=2)
        server.end_detour()
        server.management.put(f"/models/{name}?min_worker=3&synchronous=true")
        with loaded(server, name) as load:
            proxy.latency = 0.02
            load.more(20)
            proxy.stall()
            time.sleep(LOST / 3)
            proxy.resume()
            load.more(20)
            assert set(load.statuses) == {200}
            proxy.latency = 0.0
            pids = server.pids(name)
            proxy.stall()
            server.wait_replaced(name, pids, 2)
            proxy.resume()
            load.more()
            assert len(pids & server.pids(name)) == 1
    assert load.wrong == []
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 2 * 2 * 4


def test_killed_server_places_its_models_anew(tmp_path, model_store):
    """Its agents and workers end within seconds; started again, it has its models. SIGTERM answers what is in
    flight, and SIGINT ends it while workers are being placed.
    """
    with elsewhere(tmp_path, model_store) as server:
        server.registered("obey.mar", initial_workers=2)
        processes = [*server.agents(), *server.workers()]
        server.process.kill()
        _, alive = psutil.wait_procs(processes, 10)
        assert alive == []
        server.started_again()
        server.wait_ready("obey", 2)
        with ThreadPoolExecutor(4) as pool:
            order = {"do": "sleep", "seconds": 0.5}
            futures = [pool.submit(server.predict, "obey", order) for _ in range(4)]
            server.wait_arrived("obey", 4)
            server.process.send_signal(signal.SIGTERM)
            assert [each.result().status_code for each in futures] == [200] * 4
        server.started_again()
        server.wait_ready("obey", 2)
        placing = threading.Thread(target=server.register, args=("slow_start.mar",))
        placing.start()
        wait_until(lambda: len(server.agents()) == 3, "it is being placed")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        placing.join()
        assert "Traceback" not in server.home.output()


def test_worker_is_described_with_its_machine(server, model):
    """Node, pid and memory, also in log and metrics; megabytes of output are bounded, and it serves on."""
    name = model("obey")
    assert server.predict(name, {"do": "print", "megabytes": 20}).text == "printed"
    worker = wait_until(
        lambda: next((w for w in server.describe(name)["workers"] if w["memoryUsage"] > 1 << 20), None),
        "its size is known",
    )
    node = worker["node"]["name"]
    assert worker["pid"] in {each.pid for each in server.workers()}
    assert worker["status"] == "READY"
    source = f"W-{worker['id']}-obey_1.0@{node}"
    log = server.home.log("model_log.log")
    assert f"{source}-stdout" in log, log[:1000]
    assert f"{source}-stderr" in log
    assert len(log) < 4 << 20
    assert server.metric("modelserver_node_workers", model_name=name, node=node) == 1
    assert server.metric("modelserver_node_worker_memory_bytes", model_name=name, node=node) > 1 << 20
    assert server.predict(name, {}).status_code == 200


def test_requests_of_every_kind_are_served(server, model, tmp_path):
    """Failures of one row, deadlines, clients that leave, and parts of answers are as for other workers."""
    name = model("rows", batch_size=4, max_batch_delay=50)
    with ThreadPoolExecutor(4) as pool:
        rows = [{"value": 1}, {"raise": "no"}, {"value": 3}, {"value": 4}]
        codes = [each.status_code for each in pool.map(lambda row: server.predict(name, row), rows)]
    assert codes == [200, 503, 200, 200]
    late = server.predict(name, {"wait": 1, "value": 1}, headers={"x-request-timeout-ms": "200"})
    assert late.status_code == 504
    parts = model("parts")
    body = {"parts": ["a", "b"], "last": "c", "notes": str(tmp_path / "notes")}
    with server.inference.stream("POST", f"/predictions/{parts}", json=body) as answer:
        assert b"".join(answer.iter_raw()) == b"abc"
    gone = tmp_path / "gone"
    endless = {"endless": 100, "notes": str(gone)}
    with server.inference.stream("POST", f"/predictions/{parts}", json=endless) as answer:
        next(answer.iter_raw())
    wait_until(lambda: gone.exists() and "left" in gone.read_text(), "it stops for a client that has left")


def test_workers_are_scaled_and_replaced(server, model):
    """To none and back; another archive in place; after so many requests; unregistered while it is placed."""
    name = model("echo", model_name="grows", initial_workers=1)
    assert server.management.put("/models/grows?min_worker=0&synchronous=true").status_code == 200
    assert server.agents("grows") == []
    refused = server.predict(name, b"x")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert server.management.put("/models/grows?min_worker=2&synchronous=true").status_code == 200
    assert len(server.pids("grows")) == 2
    with loaded(server, "grows", clients=2) as load:
        replaced = server.management.put("/models/grows?url=witness.mar&min_worker=1&synchronous=true")
        assert replaced.status_code == 200, replaced.text
    assert set(load.statuses) == {200}
    wait_until(lambda: len(server.agents()) == 1, "the replaced ones are gone")
    leaks = model("leaks", max_worker_requests=10)
    responses = [server.predict(leaks) for _ in range(60)]
    assert {response.status_code for response in responses} == {200}
    wait_until(lambda: server.predict(leaks).text != responses[0].text, "it is recycled")
    wait_until(lambda: len(server.agents()) == 2, "the recycled ones are gone")
    leaving = threading.Thread(
        target=server.register, args=("slow_start.mar",), kwargs={"initial_workers": 3}
    )
    leaving.start()
    wait_until(lambda: len(server.agents()) > 2, "they are being placed")
    server.unregister("slow_start")
    leaving.join()
    wait_until(lambda: len(server.agents()) == 2, "nothing of it is left")


def test_ranks_may_be_on_several_machines(server):
    """A worker of three processes has three machines; when one ends, it ends as a whole, and has new ones."""
    server.registered("summing.mar")
    assert len(server.agents()) == len(server.workers()) == 3
    assert len(server.describe("summing")["workers"]) == 1
    assert server.predict("summing", b"7").json() == {"sum": 42, "ranks": 3, "gpu": None}
    assert server.predict("summing", b"x" * 3_000_000).json()["sum"] == 0
    before = {each.pid for each in (*server.agents(), *server.workers())}
    server.agents()[2].kill()
    wait_until(lambda: not before & {each.pid for each in (*server.agents(), *server.workers())}, "all end")
    server.wait_ready("summing")
    assert server.predict("summing", b"7").json()["sum"] == 42
    server.unregister("summing")
    wait_until(lambda: server.agents() == [], "nothing is left")


def test_handlers_of_every_kind_are_served(server, model, tmp_path):
    """Of continuous batching, requests join and leave a running batch, and one whose client has left takes no
    more part; calls of an asynchronous handler run at the same time, and one whose client leaves is
    cancelled; sequences stay with the machine that has their state.
    """
    turns = model("taking-turns")

    def steps():
        return [json.loads(line)["batch"] for line in (tmp_path / "steps").read_text().splitlines()]

    long = {"name": "long", "turns": 100_000, "notes": str(tmp_path / "steps")}
    with server.inference.stream("POST", f"/predictions/{turns}", json=long) as answer:
        # Kept, as its end would be that of the connection.
        parts = answer.iter_raw()
        assert next(parts).startswith(b"long1 ")
        assert server.predict(turns, {"name": "short", "turns": 3}).text == "short1 short2 short3 "
        assert ["long", "short"] in steps()
    wait_until(lambda: server.predict(turns, {"name": "a", "turns": 1}) and steps()[-1] == ["a"], "left")

    meeting, notes = model("meetings"), tmp_path / "notes"
    with ThreadPoolExecutor(8) as pool:
        orders = [{"name": str(number), "meet": 8} for number in range(8)]
        answers = list(pool.map(lambda order: server.predict(meeting, order), orders))
    assert [answer.headers["x-name"] for answer in answers] == [order["name"] for order in orders]
    began = tmp_path / "began"
    hanging = {"name": "a", "do": "hang", "notes": str(notes), "began": str(began)}
    with ChunkReader(server.port, f"/predictions/{meeting}", hanging):
        wait_until(began.exists, "it runs")
    wait_until(notes.exists, "it is cancelled")

    summed = model("summed", initial_workers=2)
    names = [f"sequence-{number}" for number in range(6)]

    def step(name):
        return server.predict(summed, {"add": 1}, headers={"ts_request_sequence_id": name}).json()

    with ThreadPoolExecutor(6) as pool:
        rounds = [list(pool.map(step, names)) for _ in range(3)]
    assert [[each["seen"] for each in turn] for turn in rounds] == [[[1] * n] * 6 for n in (1, 2, 3)]
    (pids,) = {tuple(each["pid"] for each in turn) for turn in rounds}
    assert len(set(pids)) == 2


def test_local_worker_is_beside_remote_ones(server, model):
    """A model with ``resources: local`` stays on the server's machine. Metrics of ``metrics_config`` are
    known on the others; what a handler counts and what it prints is shown.
    """
    model("stays")
    counting = model("counting", initial_workers=2)
    (local,) = server.describe("stays")["workers"]
    assert "node" not in local
    assert len(server.agents()) == 2
    assert server.predict("stays").text == str(local["pid"])
    assert {server.predict(counting).status_code for _ in range(4)} == {200}
    wait_until(lambda: server.metric("Words", ModelName="counting") == 8, "they are counted")
    wait_until(lambda: server.metric("Steps", Level="Model") == 12, "what is printed, too")


def test_packages_are_installed_on_the_machine(server):
    """Pip's lines are in the model's log with the node; a failure is refused as on the server's machine."""
    with ThreadPoolExecutor() as pool:
        refused, _ = pool.map(server.register, ("failing.mar", "needy.mar"))
    message = refused.json()["message"]
    assert (refused.status_code, refused.json()["type"]) == (400, "ModelException"), message
    assert "Custom pip package installation failed for model failing. pip ended with" in message
    assert server.predict("needy").json()[0] == 3
    log = server.home.log("model_log.log")
    assert "failing_1.0-pip@process-" in log
    assert "no-such-package-anywhere" in log
    server.unregister("needy")
