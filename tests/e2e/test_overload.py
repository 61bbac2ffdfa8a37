"""Ten times the load that a model can answer (F32), apart from other faults: all other tests wait for it."""

import time

import psutil
import pytest
from tests.e2e.load import SLOW_ECHO, Load, is_echo
from tests.e2e.serving import archived
from tests.e2e.test_faults import wait_quiet


@pytest.mark.slow  # measures two loads for some seconds
@pytest.mark.alone
def test_ten_times_the_load_costs_the_answers_nothing(start_server, tmp_path):
    """What is too much is refused, queue and memory stay bounded, and afterwards all is as before (F32)."""
    archived(tmp_path, "slowly", SLOW_ECHO)
    server = start_server(job_queue_size=4, model_store=tmp_path).registered("slowly.mar")
    process = psutil.Process(server.pid)

    def rate(clients, enough=0.0):
        """Answers per second, of the last of three tries or the first with ``enough``."""
        for _ in range(3):
            with Load(server, "slowly", clients, is_echo) as load:
                load.more(10)
                before, began = load.statuses[200], time.monotonic()
                load.more(60)
                result = (load.statuses[200] - before) / (time.monotonic() - began)
            if result >= enough:
                break
        return load, result

    _, peak = rate(4)
    before = process.memory_info().rss
    load, under_load = rate(40, 0.9 * peak)

    assert set(load.statuses) == {200, 503}
    assert load.wrong == []
    assert load.statuses[503] > load.statuses[200]
    assert under_load >= 0.9 * peak
    wait_quiet(server, "slowly")
    assert process.memory_info().rss - before < 50 << 20
    assert server.predict("slowly", b"x").content == b"x"
