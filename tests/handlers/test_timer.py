import pytest

from modelserver_handlers.context import Context
from modelserver_handlers.metrics.cache import MetricsCache
from modelserver_handlers.timer import timed, timeit


class Timed:
    def __init__(self, context):
        self.context = context

    @timed
    def preprocess(self, data, *, factor=2):
        return [factor * number for number in data]


def context_with(config):
    seen = []
    metrics = MetricsCache("m", seen.append)
    return Context("m", "/", None, 1, None, "", metrics=metrics, model_yaml_config=config), seen


def test_profiled_methods_report_their_time():
    context, seen = context_with({"handler": {"profile": True}})

    assert Timed(context).preprocess([1, 2], factor=3) == [3, 6]
    (emission,) = seen
    assert (emission.name, emission.unit, emission.kind) == ("ts_handler_preprocess", "ms", "gauge")
    assert emission.value >= 0

    with pytest.raises(TypeError):
        Timed(context).preprocess([None])
    assert len(seen) == 1


@pytest.mark.parametrize(
    "config", [{}, {"handler": {}}, {"handler": {"profile": False}}, {"handler": [1]}, None]
)
def test_other_methods_report_nothing(config):
    context, seen = context_with(config)

    assert Timed(context).preprocess([1]) == [2]
    assert Timed(None).preprocess([1]) == [2]
    assert seen == []
    assert Timed.preprocess.__name__ == "preprocess"


def test_the_time_of_the_workers_gpu_is_measured(gpus):
    """Not that of the current device, where an event would create a context."""
    gpus.count = 2
    context, seen = context_with({"handler": {"profile": True}})
    context.system_properties["gpu_id"] = 1
    gpus.contexts.add(1)
    Timed(context).preprocess([1])

    assert [emission.value for emission in seen] == [1.0]
    assert gpus.contexts == {1}
    assert gpus.current == 0


def test_timeit_prints(capsys):
    @timeit
    def double(number):
        return 2 * number

    assert double(4) == 8
    assert capsys.readouterr().out.startswith("Timing function double: ")
