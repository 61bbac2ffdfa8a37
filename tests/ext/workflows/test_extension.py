import pytest

from modelserver.ext.workflows.extension import PATHS
from modelserver.surface.inference.routes import Route, target_finder


@pytest.mark.parametrize(
    ("path", "workflow"),
    [("/wfpredict/w", "w"), ("/WFPredict/w/", "w"), ("/wfpredict/a%20b/more", "a b"), ("/wfpredict", None)],
)
def test_paths_name_the_workflow(path, workflow):
    """In any case, and whatever follows the name, as in TorchServe (reference 6.1)."""
    target = target_finder([("workflow", PATHS)])(path.encode())
    assert (target and target.route) == (workflow and Route(workflow, protocol="workflow"))
