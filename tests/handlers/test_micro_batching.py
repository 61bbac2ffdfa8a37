import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from modelserver_handlers import current_device
from modelserver_handlers.base import BaseHandler
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.micro_batching import HANDLER_METHODS, MicroBatching


class Doubler(BaseHandler):
    """Doubles numbers; negative ones are rejected, 13 fails."""

    def __init__(self):
        super().__init__()
        self.sizes = []
        self.threads = set()
        self.handle = MicroBatching(self, 2)

    def preprocess(self, data):
        self.sizes.append(len(data))
        for idx, number in enumerate(data):
            if number < 0:
                self.context.reject(idx, f"negative in part {self.handle.get_micro_batch_idx()}")
        return [number for number in data if number >= 0]

    def inference(self, data, *_args, **_kwargs):
        assert data
        self.threads.add(threading.current_thread().name)
        if 13 in data:
            raise LookupError("13")
        return [2 * number for number in data]

    def postprocess(self, data):
        return data

    def describe_handle(self):
        return "doubles"

    def get_insights(self, data, _inputs, _target):
        return [data] * len(data)


@pytest.fixture
def handler():
    made = Doubler()
    yield made
    made.handle.shutdown()


def context_of(size, **properties):
    context = Context("m", "/", None, 8, None, "")
    ids = [str(number) for number in range(size)]
    context._ms_begin(BatchState(ids, [{}] * size, properties=[properties] * size))
    return context


@pytest.mark.parametrize("numbers", [[], [1], [1, 2], [1, 2, 3], list(range(12))])
def test_answers_come_in_order(handler, numbers):
    assert handler.handle(numbers, context_of(len(numbers))) == [2 * number for number in numbers]
    assert max(handler.sizes, default=0) <= 2
    assert sum(handler.sizes) == len(numbers)


@pytest.mark.timeout(20)
def test_a_failing_phase_fails_the_batch(handler):
    """What a phase raises comes out at once (TorchServe hangs), and the next batch is answered."""
    with pytest.raises(LookupError, match="13"):
        handler.handle([1, 2, 13, 4, 5], context_of(5))

    assert handler.handle([1, 2, 3], context_of(3)) == [2, 4, 6]

    handler.inference = Mock(side_effect=SystemExit(3))
    with pytest.raises(SystemExit):
        handler.handle([1], context_of(1))


def test_rejected_rows_are_counted_within_the_batch(handler):
    """A rejection in a part is that row's of the batch; a part without rows is not computed (F18)."""
    context = context_of(5)

    assert handler.handle([1, -1, -1, -1, 5], context) == [2, None, None, None, 10]
    assert context._ms_rejections == {
        1: (400, "negative in part 0"),
        2: (400, "negative in part 1"),
        3: (400, "negative in part 1"),
    }


def test_other_calls_and_profiled_batches_are_not_cut_up(handler, monkeypatch):
    assert handler.handle([1, 2, 3], context_of(3, explain="True")) == [[1, 2, 3]] * 3
    assert handler.handle([{}], context_of(1, describe="True")) == ["doubles"]

    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "1")
    handler.profiler_args = {"on_trace_ready": lambda _: None}

    assert handler.handle([1, 2, 3], context_of(3)) == [2, 4, 6]
    assert handler.sizes[-1] == 3


def test_parallelism_is_merged_and_checked():
    micro = MicroBatching(object(), parallelism={"preprocess": 2})
    micro.parallelism = {"inference": 3}

    assert micro.parallelism == {"preprocess": 2, "inference": 3}
    assert {phase: len(threads) for phase, threads in micro.thread_groups.items()} == {
        "preprocess": 2,
        "inference": 3,
        "postprocess": 1,
    }
    assert HANDLER_METHODS == ["preprocess", "inference", "postprocess"]
    for wrong in ({"infer": 1}, {"inference": 0}, {"inference": "2"}):
        with pytest.raises(ValueError, match="parallelism"):
            micro.parallelism = wrong


@pytest.mark.timeout(20)
def test_phases_of_different_parts_run_side_by_side(handler):
    meeting = threading.Barrier(2, timeout=10)
    prepared = []

    def preprocess(data):
        prepared.append(data[0])
        if len(prepared) == 2:
            meeting.wait()
        return data

    def inference(data):
        if data[0] == 0:
            meeting.wait()
        return data

    handler.preprocess, handler.inference = preprocess, inference

    assert handler.handle([0, 1, 2, 3], context_of(4)) == [0, 1, 2, 3]


@pytest.mark.timeout(20)
def test_a_phase_has_as_many_threads_as_its_number_says(handler):
    handler.handle([1, 2], context_of(2))
    handler.handle.parallelism = {"inference": 2}
    meeting = threading.Barrier(2, timeout=10)
    handler.inference = lambda data: (meeting.wait(), data)[1]

    assert handler.handle([1, 2, 3, 4], context_of(4)) == [1, 2, 3, 4]


def test_wrong_answers_and_sizes_are_refused(handler):
    handler.postprocess = lambda data: "text"

    with pytest.raises(TypeError, match="postprocess returned str for a part"):
        handler.handle([1, 2, 3], context_of(3))

    handler.handle.micro_batch_size = 0

    with pytest.raises(ValueError, match="at least 1, got 0"):
        handler.handle([1], context_of(1))


def test_handlers_of_ones_own_need_no_state(handler):
    plain = SimpleNamespace(get_request_header=lambda _idx, _key: False)
    assert handler.handle([1, 2, 3], plain) == [2, 4, 6]


def test_threads_use_the_gpu(handler, monkeypatch):
    entered = []
    monkeypatch.setattr(current_device, "_enter", lambda: entered.append(threading.current_thread().name))
    handler.handle.handle([1, 2, 3])

    assert sorted(entered) == [f"micro-{method}_0" for method in sorted(HANDLER_METHODS)]
