"""A Ray cluster on loopback, in a process of its own: ``python ray_cluster.py PORT``.

Reads one JSON value a line: the arguments of a node to add, or null to start the GCS anew, killed or not.
Answers with the process ids of the node's, or the head's, raylet and GCS. All ends at the end of the input.
"""

import contextlib
import json
import os
import sys
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray.cluster_utils import Cluster


def stay_on_loopback() -> None:
    """Ray would replace 127.0.0.1 by an address that others reach."""
    services.resolve_ip_for_localhost = lambda host: host
    services.get_node_ip_address = lambda _address=None: "127.0.0.1"


def pids(node) -> dict[str, int]:
    """The processes of a node that tests kill."""
    return {
        name: started[0].process.pid
        for name, started in node.all_processes.items()
        if name in {"raylet", "gcs_server"}
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    stay_on_loopback()
    # What nothing here needs of a head: the dashboard, whose other parts are off, and the autoscaler.
    Node.start_api_server = lambda *_, **_options: None
    first: dict[str, Any] = {
        "gcs_server_port": int(sys.argv[1]),
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
    }
    cluster = Cluster()
    for line in sys.stdin:
        if (request := json.loads(line)) is None:
            node = cluster.head_node
            node.kill_gcs_server(check_alive=False)
            node.start_gcs_server()
        else:
            node = cluster.add_node(node_ip_address="127.0.0.1", **first, **request)
            first = {}
        answers.write(json.dumps(pids(node)) + "\n")
    for node in cluster.list_all_nodes():
        with contextlib.suppress(Exception):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    os._exit(0)


if __name__ == "__main__":
    main()
