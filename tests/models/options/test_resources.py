import pytest

from modelserver.engine.demand import Demand
from modelserver.models.options.values import parse_resources, read_resources


def test_a_worker_stays_or_says_what_it_needs():
    assert read_resources("local") == "local"
    assert read_resources({}) == Demand()
    amounts = {"num_cpus": 2, "num_gpus": 0.5, "memory": 1 << 30}
    assert read_resources({**amounts, "custom": {"tpu": 1}, "label_selector": {"zone": "a"}}) == Demand(
        2.0, 0.5, 1 << 30, {"tpu": 1.0}, {"zone": "a"}
    )
    assert parse_resources('{"num_gpus": 1}') == Demand(num_gpus=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("elsewhere", "local or a mapping is needed"),
        ({"gpus": 1}, "gpus is unknown, one of num_cpus, num_gpus, memory, custom, label_selector is needed"),
        ({"num_cpus": -1}, "num_cpus=-1: a number of at least 0 is needed"),
        ({"num_cpus": True}, "num_cpus=True: a number of at least 0 is needed"),
        ({"num_gpus": float("nan")}, "num_gpus=nan: a number of at least 0 is needed"),
        ({"memory": 0.5}, "memory=0.5: a number of bytes is needed"),
        ({"custom": ["tpu"]}, "custom=['tpu']: a mapping of names to numbers is needed"),
        ({"custom": {"tpu": "one"}}, "custom.tpu=one: a number of at least 0 is needed"),
        (
            {"label_selector": {"zone": 1}},
            "label_selector={'zone': 1}: a mapping of texts to texts is needed",
        ),
    ],
)
def test_what_is_no_resource_is_refused(value, message):
    with pytest.raises(ValueError, match="needed") as refusal:
        read_resources(value)
    assert str(refusal.value) == message
