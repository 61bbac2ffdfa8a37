import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from modelserver.engine.offload import calls

_ENDED = msgspec.msgpack.Decoder(calls.CallEnded)


def joined(parts: list[bytes], times: int) -> bytes:
    return b"".join(parts) * times


def test_what_is_sent_arrives():
    """A frame of any size, cut as the socket likes, is one message again."""
    here, there = socket.socketpair()
    with here, there:
        large = calls.CallEnded(msgspec.Raw(calls.encode(b"x" * 3_000_000)))
        thread = threading.Thread(target=calls.send, args=(here, large))
        thread.start()
        arrived = _ENDED.decode(calls.receive(there))
        thread.join()

    assert bytes(arrived.value) == bytes(large.value)


def test_the_other_side_may_end():
    for started in (b"", b"\x05\0\0\0\0\0\0\0ab"):
        here, there = socket.socketpair()
        with there:
            here.sendall(started)
            here.close()
            with pytest.raises(calls.HelperClosed):
                calls.receive(there)


def test_a_call_is_made():
    call = calls.OffloadCall(__name__, "joined", 1.0, msgspec.Raw(calls.encode(([b"a", b"b"], 2))))
    assert calls.read_result(joined, calls.perform(call).value) == b"abab"


def test_arguments_of_other_types_are_refused():
    wrong = msgspec.Raw(calls.encode((["text"], "no number")))
    with pytest.raises(msgspec.ValidationError):
        calls.perform(calls.OffloadCall(__name__, "joined", 1.0, wrong))


def fresh(number: int) -> Callable[[], Any]:
    """A function that returns a Struct which msgspec has not seen yet."""
    kind: Any = None
    for depth in range(6):
        fields = [(f"f{field}", dict[str, int], {}) for field in range(10)]
        kind = msgspec.defstruct(
            f"S{number}_{depth}", [("inner", kind | None, None), *fields] if kind else fields
        )

    def function() -> Any:
        """A function that has the result by its annotation."""

    function.__annotations__["return"] = kind
    return function


def test_threads_read_the_first_results_of_a_function_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            for number in range(200):
                function, begin = fresh(number), threading.Barrier(2)
                value = msgspec.Raw(calls.encode({"inner": {"inner": {"f1": {"a": 1}}}}))

                def read(function: Any = function, begin: Any = begin, value: Any = value) -> Any:
                    begin.wait()
                    return calls.read_result(function, value)

                both = [threads.submit(read) for _ in range(2)]
                assert [each.result().inner.inner.f1 for each in both] == [{"a": 1}] * 2
    finally:
        sys.setswitchinterval(interval)
