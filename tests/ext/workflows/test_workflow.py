import asyncio
from pathlib import Path

import pytest

from modelserver.ext.workflows.archive import ArchiveContents, WorkflowArchive
from modelserver.ext.workflows.specification import parse_specification
from modelserver.ext.workflows.workflow import Workflow
from modelserver.models.version import SavedWorkflow


def workflow(text, load="at-start"):
    contents = ArchiveContents("w", "functions.py", parse_specification(text, "flow.yaml", "def f(): ..."))
    return Workflow("w", WorkflowArchive("w.war", Path("folder"), contents), load)


def test_what_the_specification_does_not_say_is_up_to_the_archive():
    """A delay of 50 ms, as TorchServe has it, only comes with a batch size."""
    flow = workflow("models: {m: {url: m.mar}, n: {url: n.mar, max-batch-delay: 0}}\ndag: {m: [n]}")
    one, second = (flow.registration(n, SavedWorkflow("w.war")) for n in flow.specification.nodes.values())

    assert (one.batch_size, one.max_batch_delay, one.handler, one.trusted) == (None, None, None, False)
    assert second.max_batch_delay == 0
    assert flow.specification.warnings == ()


@pytest.mark.parametrize(("load", "fewest"), [("at-start", 1), ("on-demand", 0)])
def test_nodes_have_no_workers_at_first_when_loaded_on_demand(load, fewest):
    """Unless they say how many; the server's setting counts where the workflow sets nothing."""
    models = "m: {url: m.mar}, n: {url: n.mar, min-workers: 2}}\ndag: {m: [n, f]}"
    request = SavedWorkflow("w.war")
    for flow, own in (
        (workflow(f"models: {{load: {load}, {models}"), load),
        (workflow(f"models: {{{models}", load), None),
    ):
        nodes = [flow.registration(node, request) for node in flow.specification.nodes.values()]
        assert [(each.min_workers, each.load) for each in nodes] == [(fewest, own), (2, own), (fewest, own)]


async def test_settling_waits_for_requests():
    flow = workflow("dag: {f: []}")
    await flow.settle(1.0)
    one, two = "one", "two"
    flow.add_run(one)
    flow.add_run(two)
    await flow.settle(0.001)
    settling = asyncio.ensure_future(flow.settle(10.0))
    flow.remove_run(one)
    await asyncio.sleep(0)
    assert not settling.done()
    flow.remove_run(two)
    await asyncio.wait_for(settling, 1.0)
