from tests.e2e.load import SLOW_ECHO, Load, is_echo
from tests.e2e.serving import archived, wait_until

PAUSES = {"autoscale_up_pause": 200, "autoscale_down_pause": 400}
QUICK = {"autoscale": True, "autoscale_target_wait": 20, **PAUSES}


def grown(server, name):
    """The state of its autoscaling, if two workers are ready and meant to be."""
    described = server.describe(name)
    ready = [worker["status"] for worker in described["workers"]].count("READY")
    return described["autoscaling"] if ready == described["autoscaling"]["wish"] == 2 else None


def test_workers_follow_the_load(shared_server, model_store):
    archived(model_store, "slowly", SLOW_ECHO)
    shared_server.registered("slowly.mar", model_name="grows", min_workers=1, max_workers=2, **QUICK)
    with Load(shared_server, "grows", is_own=is_echo) as load:
        # If the load pauses, it is one for a while.
        state = wait_until(lambda: grown(shared_server, "grows"), "a second worker serves")
    assert state["source"] == "register parameter"
    assert state["lastChange"]["reason"] == "queue_wait"
    assert (state["lastChange"]["from"], state["lastChange"]["to"]) == (1, 2)
    assert (state["targetWait"], state["upPause"], state["downPause"]) == (20, 200, 400)

    wait_until(lambda: len(shared_server.describe("grows")["workers"]) == 1, "it goes again")
    assert set(load.statuses) == {200}
    assert load.wrong == []
    labels = {"model_name": "grows", "direction": "up", "reason": "queue_wait"}
    ups = shared_server.metric("modelserver_scalings_total", **labels)
    labels = {"model_name": "grows", "direction": "down", "reason": "idle"}
    assert shared_server.metric("modelserver_scalings_total", **labels) == ups >= 1
    assert shared_server.metric("modelserver_workers_wished", model_name="grows") == 1
    shared_server.home.wait_for_log("Autoscaling grows_1.0: 1 -> 2 workers (queue_wait): waited ")
    shared_server.home.wait_for_log("Autoscaling grows_1.0: 2 -> 1 workers (idle)")
    shared_server.unregister("grows")
