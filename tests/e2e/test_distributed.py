import os
import signal

import pytest
from tests.e2e.blocks import BLOCKS
from tests.e2e.serving import Home, Server, archived, serving, wait_until

# Sums what all ranks have, by the means of the standard library.
SUMMING = """
import json, os
from multiprocessing.connection import Client, Listener

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


class Handler:
    def initialize(self, context):
        self.config = context.model_yaml_config["handler"]
        if self.config.get("fails") == rank:
            raise ValueError("nothing to do here")
        if rank == 0:
            with Listener(address) as listener:
                self.others = [listener.accept() for _ in range(size - 1)]
        else:
            self.others = [self.meet()]

    def meet(self):
        while True:
            try:
                return Client(address)
            except ConnectionRefusedError:
                pass

    def handle(self, data, context):
        bodies = [bytes(row["body"]).decode() for row in data]
        for body in bodies:
            if body == f"rank {rank} leaves":
                os._exit(3)
        own = [(rank + 1) * int(body) if body.isdigit() else 0 for body in bodies]
        if rank:
            self.others[0].send(own)
        else:
            own = [sum(parts) for parts in zip(own, *(other.recv() for other in self.others))]
        print(f"rank {rank} had {bodies[0][:9]}")
        gpu = context.system_properties["gpu_id"]
        return [json.dumps({"sum": value, "ranks": size, "gpu": gpu}) for value in own]
"""

# The handler of docs/model-config.md, with another number for each rank.
REDUCING = f"""
import torch
{BLOCKS["docs/model-config.md: Several GPUs, several processes: python 1"].text}
sums = Handler.handle

def of_rank(self, data, context):
    part = torch.distributed.get_rank() + 1
    return sums(self, [{{"body": str(part * float(row["body"])).encode()}} for row in data], context)

Handler.handle = of_rank
"""

CONFIG = """
deviceType: cpu
minWorkers: 1
maxWorkers: 1
batchSize: 4
parallelType: tp
torchrun: {{nproc-per-node: {processes}, OMP_NUMBER_THREADS: 1}}
handler: {{fails: {fails}}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = tmp_path_factory.mktemp("distributed") / "store"
    archived(store, "two", SUMMING, config=CONFIG.format(processes=2, fails="null"))
    archived(store, "three", SUMMING, config=CONFIG.format(processes=3, fails="null"))
    archived(store, "broken", SUMMING, config=CONFIG.format(processes=3, fails="1"))
    archived(store, "gloo", REDUCING, config=CONFIG.format(processes=2, fails="null"))
    home = Home(tmp_path_factory.mktemp("home"))
    with serving(Server(home, store, settings={"initial_distribution_port": 0})) as server:
        yield server


def test_ranks_compute_together(server):
    """A worker of three processes is one worker; each rank has its part in the result of rank 0."""
    server.registered("three.mar")
    assert len(server.workers()) == 3
    assert len(server.describe("three")["workers"]) == 1

    answers = [server.predict("three", str(number).encode()) for number in range(5)]

    assert [answer.json() for answer in answers] == [
        {"sum": 6 * number, "ranks": 3, "gpu": None} for number in range(5)
    ]
    assert server.predict("three", b"x" * 3_000_000).json()["sum"] == 0
    wait_until(lambda: "rank 2 had 4" in server.home.log("model_log.log"), "the last rank's output")
    server.unregister("three")
    assert server.workers() == []


@pytest.mark.slow  # two workers of two processes are replaced
def test_rank_that_ends_takes_its_worker_along(server):
    """A rank that dies takes the batch and its worker with it; a new one takes its place (F39)."""
    server.registered("two.mar")
    before = {process.pid for process in server.workers()}
    answer = server.predict("two", b"rank 1 leaves")

    # Rank 0 may notice that its neighbour is gone, and fail, before the server does.
    message = answer.json()["message"].partition(":")[0]
    assert (answer.status_code, message) in [(500, "Worker died."), (503, "Prediction failed")]
    wait_until(lambda: not before & {process.pid for process in server.workers()}, "both are gone")
    server.wait_ready("two")
    after = {process.pid for process in server.workers()}
    assert len(after) == 2
    assert not before & after
    assert server.predict("two", b"7").json()["sum"] == 21

    os.kill(max(after), signal.SIGKILL)
    wait_until(lambda: not after & {process.pid for process in server.workers()}, "both are gone")
    server.wait_ready("two")
    assert server.predict("two", b"7").json()["sum"] == 21
    server.home.wait_for_log("which was killed by SIGKILL. Worker disconnected.")
    server.unregister("two")


def test_rank_that_cannot_load_fails_the_registration(server):
    """The registration is refused with the rank and its reason, and nothing is left (F40)."""
    answer = server.register("broken.mar")

    assert answer.status_code == 500
    assert "Rank 1: " in answer.json()["message"]
    assert "nothing to do here" in answer.json()["message"]
    assert server.workers() == []


@pytest.mark.slow  # imports torch twice
def test_ranks_reduce_over_gloo(server):
    """torch.distributed finds its environment variables: two processes reduce over gloo."""
    server.registered("gloo.mar")
    answers = [server.predict("gloo", str(number).encode()).json() for number in (0, 1, 2.5)]

    assert answers == [0.0, 3.0, 7.5]
    server.unregister("gloo")
