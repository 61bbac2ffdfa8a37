import pytest

from modelserver.errors import BadRequest
from modelserver.models.changes import Change
from modelserver.models.options.resolve import ModelOptions


def test_what_is_named_changes():
    before = ModelOptions(batch_size=4, sources={"batch_size": "default"})
    after = Change.of(max_batch_delay=50).applied_to(before)

    assert (after.max_batch_delay, after.batch_policy) == (50, "adaptive")
    assert after.sources == {"batch_size": "default", "max_batch_delay": "register parameter"}
    assert (before.max_batch_delay, after.batch_size) == (100, 4)

    change = Change.of(batch_size=8, max_batch_delay=0, batch_policy="Greedy", response_timeout=3)
    after = change.applied_to(ModelOptions())

    assert after.batch_policy == "greedy"
    assert (after.batch_size, after.max_batch_delay, after.response_timeout) == (8, 0, 3)
    assert str(change) == "batch_size=8, max_batch_delay=0, batch_policy=greedy, response_timeout=3"


@pytest.mark.parametrize(
    "source", [{}, {"batch_size": None}, {"batch_size": -1, "response_timeout": -1}, {"batch_policy": ""}]
)
def test_change_without_options_is_empty(source):
    """TorchServe's marks for "not given" are no change."""
    assert not Change.of(**source)


MODES = ("sequence_batching", "continuous_batching", "async_communication")


@pytest.mark.parametrize("options", [*({mode: True} for mode in MODES), {"processes": 2}])
def test_options_of_batches_are_fixed_where_requests_are_not_batched(options):
    """If requests are not batched like others, only the timeout can be changed."""
    with pytest.raises(BadRequest, match="batch_size cannot be changed while the model runs"):
        Change.of(batch_size=2).applied_to(ModelOptions(**options))
    assert Change.of(response_timeout=2).applied_to(ModelOptions(**options)).response_timeout == 2
