"""What nodes could ever have, and what is free."""

import pytest

from modelserver.ext.cluster.ray_helper import impossible, situation

_NODES = [
    {"Alive": True, "Resources": {"CPU": 4, "memory": 8 << 30}, "Labels": {"zone": "a"}},
    {
        "Alive": True,
        "Resources": {"CPU": 2, "GPU": 1, "memory": 4 << 30},
        "Labels": {"zone": "b", "kind": "x"},
    },
    {"Alive": False, "Resources": {"CPU": 64, "GPU": 8}, "Labels": {"zone": "c"}},
]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_cpus": 4}, ""),
        ({"num_cpus": 2, "num_gpus": 1}, ""),
        ({"num_cpus": 0, "num_gpus": 0}, ""),
        ({"num_cpus": 8}, "no node has 8 CPU, at most 4 CPU"),
        ({"num_gpus": 2}, "no node has 2 GPU, at most 1 GPU"),
        ({"memory": 16 << 30}, "no node has 16 GiB memory, at most 8 GiB memory"),
        ({"resources": {"disk": 1.5}}, "no node has 1.5 disk, at most 0 disk"),
        ({"num_cpus": 4, "num_gpus": 1}, "no node has 4 CPU with 1 GPU"),
        (
            {"num_cpus": 4, "label_selector": {"zone": "b"}},
            "no node with these labels has 4 CPU, at most 2 CPU",
        ),
    ],
)
def test_a_demand_is_compared_with_each_node(options, reason):
    assert impossible(options, _NODES) == reason


@pytest.mark.parametrize(
    ("selector", "exists"),
    [
        ({"zone": "a"}, True),
        ({"zone": "b", "kind": "x"}, True),
        ({"zone": "a", "kind": "x"}, False),
        ({"zone": "c"}, False),
        ({"zone": "!a"}, True),
        ({"kind": "!x"}, True),
        ({"zone": "in(b, c)"}, True),
        ({"zone": "in(d)"}, False),
        ({"zone": "!in(a, b)"}, False),
    ],
)
def test_labels_are_matched_as_ray_does(selector, exists):
    reason = impossible({"num_cpus": 1, "label_selector": selector}, _NODES)
    assert (reason == "") is exists
    assert exists or reason.startswith("no node has the labels ")


def test_the_situation_is_in_words():
    total = {
        "disk": 2.0,
        "memory": 8 << 30,
        "GPU": 1,
        "CPU": 6,
        "node:10.0.0.1": 1,
        "object_store_memory": 9e9,
    }
    free = {"CPU": 1.5, "memory": 3 << 30, "node:10.0.0.1": 1}

    words = "Ray has free 1.5 of 6 CPU, 0 of 1 GPU, 3 of 8 GiB memory, 0 of 2 disk"
    assert situation(free, total) == words
    assert situation({}, {}) == "Ray has no nodes"
