"""The messages between the server and its Ray helper."""

from __future__ import annotations

import pytest

from modelserver.ext.cluster import ray_messages as messages


@pytest.mark.parametrize(
    "message",
    [
        messages.PlaceActors(1, "a:b:1", ["{}\n"], {"num_cpus": 0.5, "label_selector": {"zone": "a"}}),
        messages.WatchActors(1, "a"),
        messages.WithdrawActors("a"),
    ],
)
def test_requests_are_one_line(message: messages.ToHelper) -> None:
    """They arrive as they were sent, each in one line."""
    line = messages.encode(message)

    assert b"\n" not in line
    assert messages.decode_to_helper(line) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.ClusterJoined("2.60.0", "0.1.0", 3),
        messages.ClusterRefused("two\nlines"),
        messages.ActorsPlaced(1),
        messages.ActorEnded(1, "it ended"),
        messages.RayState("", "Ray has", "no node"),
    ],
)
def test_reports_are_one_line(message: messages.FromHelper) -> None:
    """Requests are one line too."""
    line = messages.encode(message)

    assert b"\n" not in line
    assert messages.decode_from_helper(line) == message


def test_an_invitation_is_not_shown() -> None:
    """A request that is printed, in a traceback or a log, keeps it secret."""
    assert "secret" not in repr(messages.PlaceActors(1, "a", ["secret"], {}))
