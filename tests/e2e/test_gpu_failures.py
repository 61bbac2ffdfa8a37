"""A server whose worker has a simulated GPU: what breaks it, and what does not fit into it."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import ROOT, Home, Server, archived, serving, wait_until

from modelserver.engine.wire.messages import GPU_BROKEN

pytestmark = pytest.mark.slow  # imports torch

# Each row takes 2 GiB, in two steps.
SOURCE = """
import os

from tests.simulated_gpu import GIB, SimulatedGpus

gpus = SimulatedGpus(memory=9 * GIB)


class Simulated:
    def initialize(self, context):
        gpus.install()
        gpus.launch()

    def handle(self, data, context):
        if any(row["body"] == b"poison" for row in data):
            gpus.fail()
        held = [gpus.hold(len(data) * GIB)]
        held.append(gpus.hold(len(data) * GIB))
        return [str(os.getpid())] * len(data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with an archive of it, whose workers can import the simulation."""
    folder = tmp_path_factory.mktemp("gpu")
    archived(folder, "simulated", SOURCE)
    roots = os.pathsep.join(str(each) for each in (ROOT / "app", ROOT / "handlers", ROOT))
    home = Home(folder / "home", {"PYTHONPATH": roots}, for_children=True)
    with serving(Server(home, folder, settings={"expose_errors": "true"})) as started:
        yield started


def test_a_worker_with_a_broken_gpu_is_replaced(server):
    """The request that broke it gets 500 and why; all others are served, by another process from then on. The
    description, the metrics and the log say so, and the server is ready again (F75).
    """
    server.registered("simulated.mar", model_name="poisoned", batch_size=1)
    first = server.predict("poisoned", b"good").text
    with ThreadPoolExecutor(9) as clients:
        answers = list(clients.map(lambda x: server.predict("poisoned", x), [b"poison", *[b"good"] * 8]))
    again = server.predict("poisoned", b"good")
    wait_until(lambda: server.inference.get("/readyz").status_code == 200, "the server is ready")
    described = server.describe("poisoned")
    (worker,) = described["workers"]

    assert answers[0].status_code == 500
    message = answers[0].json()["message"]
    assert message.startswith(f"{GPU_BROKEN}: AcceleratorError: CUDA error: device-side assert")
    assert [answer.status_code for answer in answers[1:]] == [200] * 8
    assert {answer.text for answer in answers[1:]} <= {first, again.text}
    assert (again.status_code, again.text) == (200, str(worker["pid"]))
    assert again.text != first
    assert server.inference.get("/ping").status_code == 200
    assert "device-side assert" in worker["lastEnd"]["reason"]
    assert "failure" not in worker
    assert described["errors"]["types"] == {"AcceleratorError": 1}
    assert server.metric("modelserver_gpu_failures_total", model_name="poisoned") == 1
    server.home.wait_for_log("its GPU cannot be used any more: AcceleratorError")


def test_a_batch_that_does_not_fit_is_served_in_parts(server):
    """All rows get their answer, and the description and the log tell how many fit at once."""
    server.registered("simulated.mar", model_name="large", batch_size=8, split_instances=True)
    answers = [server.v1("large", ["x"] * 8) for _ in range(2)]
    (worker,) = server.describe("large")["workers"]

    assert [(answer.status_code, len(answer.json()["predictions"])) for answer in answers] == [(200, 8)] * 2
    assert worker["largestBatch"] == 4
    server.home.wait_for_log("more than 4 rows exhaust its GPU's memory, batches are split")
