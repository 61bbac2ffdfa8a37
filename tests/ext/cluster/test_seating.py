"""The numbers of a worker's processes on several machines."""

from dataclasses import replace

import msgspec
import pytest

from modelserver.engine.pools.spec import Ranks, WorkerSpec
from modelserver.engine.wire.messages import Load
from modelserver.ext.cluster.launcher import rank_spec, seats
from modelserver.ext.cluster.messages import Meeting, Present

_MEETING = Meeting("10.0.0.1", 29501)
_SPEC = WorkerSpec(Load("m", "1.0", "/m", "h", 4), threads=8, frame_limit=1, extra_environment={"OWN": "1"})


def presents(*machines):
    """Agents on machines, with their GPUs."""
    named = ((m, "") if isinstance(m, str) else m for m in machines)
    return [Present("1", "3.11", node, "h", devices) for node, devices in named]


def specs(*machines, has_gpus=False, base=_SPEC):
    base = replace(base, ranks=Ranks(len(machines)))
    return [rank_spec(base, seat, _MEETING, has_gpus=has_gpus) for seat in seats(presents(*machines))]


def variables(results, name):
    return [spec.extra_environment[name] for spec in results]


def test_ranks_of_one_machine_follow_each_other():
    """As torchrun numbers them, whatever the order in which places were found."""
    order = seats(presents("a", "b", "a", "b", "b"))

    assert [seat.place for seat in order] == [0, 2, 1, 3, 4]
    assert [seat.rank for seat in order] == [0, 1, 2, 3, 4]
    assert [(seat.node, seat.local_rank, seat.local_count) for seat in order] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
    ]


def test_ranks_on_several_machines_have_torchruns_variables():
    """Each finds what torchrun would tell it there; all meet on the first machine. They meet there whatever
    its firewall accepts from other machines.
    """
    result = specs("a", "b", "b")

    assert variables(result, "RANK") == ["0", "1", "2"]
    assert variables(result, "LOCAL_RANK") == ["0", "0", "1"]
    assert variables(result, "LOCAL_WORLD_SIZE") == ["1", "2", "2"]
    assert variables(result, "GROUP_RANK") == ["0", "1", "1"]
    assert variables(result, "GROUP_WORLD_SIZE") == ["2", "2", "2"]
    assert variables(result, "WORLD_SIZE") == ["3", "3", "3"]
    assert variables(result, "MASTER_ADDR") == ["10.0.0.1"] * 3
    assert variables(result, "MASTER_PORT") == ["29501"] * 3
    assert variables(result, "OWN") == ["1"] * 3
    assert [(spec.load.rank, spec.load.ranks, spec.threads) for spec in result] == [
        (0, 3, 2),
        (1, 3, 2),
        (2, 3, 2),
    ]
    assert [spec.load.gpu_id for spec in result] == [None] * 3

    assert variables(specs("a", "a"), "MASTER_ADDR") == ["127.0.0.1"] * 2


@pytest.mark.parametrize(
    ("values", "visible", "devices"),
    [
        (["3", "1"], "1,3", [0, 1]),
        (["2,3", "0,1"], "0,1,2,3", [0, 2]),
        (["10", "9"], "9,10", [0, 1]),
        (["4", "4"], "4", [0, 0]),
        (["0,1,2,3", "0,1,2,3"], "0,1,2,3", [0, 1]),
        (["", ""], None, [0, 1]),
    ],
)
def test_ranks_see_all_gpus_of_their_machine(values, visible, devices):
    result = specs(*(("a", each) for each in values), has_gpus=True)
    assert {spec.extra_environment.get("CUDA_VISIBLE_DEVICES") for spec in result} == {visible}
    assert [spec.load.gpu_id for spec in result] == devices


def test_gpus_of_other_machines_do_not_count():
    result = specs(("a", "5"), ("b", "0"), ("b", "1"), has_gpus=True)

    assert variables(result, "CUDA_VISIBLE_DEVICES") == ["5", "0,1", "0,1"]
    assert [spec.load.gpu_id for spec in result] == [0, 0, 1]

    here = replace(_SPEC, load=msgspec.structs.replace(_SPEC.load, gpu_id=7))

    assert [spec.load.gpu_id for spec in specs("a", "a", base=here)] == [None, None]
