"""Several values out of one request, and what the context shows meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from tests.handlers.envelopes.conftest import put

from modelserver_handlers.envelopes import (
    KserveEnvelope,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver_handlers.context import Context


def test_context_shows_the_request_of_each_value() -> None:
    """Ids, headers and parameters at a value's position are those of the request that it came in."""

    def handler(values: list[Any], context: Context) -> list[Any]:
        return [
            [
                context.get_request_id(at),
                context.get_request_header(at, "who"),
                context.get_request_parameters(at)["k"],
            ]
            for at in range(len(values))
        ]

    rows = [{"body": {"instances": [1, 2]}}, {"body": {"instances": []}}, {"body": {"instances": [3]}}]
    answers, context = put(KserveEnvelope, rows, handler)

    assert [answer["predictions"] for answer in answers] == [
        [["id-0", "0", 0]] * 2,
        [],
        [["id-2", "2", 2]],
    ]
    assert context.get_request_id(1) == "id-1"


def test_statuses_and_headers_reach_the_request() -> None:
    """What a handler sets for a value is set for its request."""

    def handler(values: list[Any], context: Context) -> list[Any]:
        context.set_response_status(201, "made", 2)
        context.set_response_header(2, "x-own", "yes")
        return values

    _, context = put(KserveEnvelope, [{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}], handler)

    assert (context.get_response_status(0)[0], context.get_response_status(1)) == (200, (201, "made"))
    assert context.get_response_headers(1) == {"x-own": "yes"}


def test_a_rejected_value_rejects_its_request() -> None:
    """The message says which instance it was; other requests are answered."""

    def handler(values: list[Any], context: Context) -> list[Any]:
        context.reject(1, "too large", 422)
        context.reject(3, "too small")
        return [None if at in (1, 3) else value for at, value in enumerate(values)]

    rows = [{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}, {"body": {"instances": [4]}}]
    answers, context = put(KserveEnvelope, rows, handler)

    assert answers == [None, {"predictions": [3]}, None]
    assert context._ms_rejections == {0: (422, "instances[1]: too large"), 2: (400, "too small")}


@given(st.lists(st.lists(st.integers(), max_size=4) | st.none(), max_size=6))
def test_every_request_gets_its_own(batch: Sequence[list[int] | None]) -> None:
    """Whatever the numbers of instances, and whichever requests are malformed (F18, F23)."""
    rows = [{"body": {"no": 1} if values is None else {"instances": values}} for values in batch]

    answers, context = put(KserveEnvelope, rows)

    assert answers == [None if values is None else {"predictions": values} for values in batch]
    assert sorted(context._ms_rejections) == [at for at, values in enumerate(batch) if values is None]
