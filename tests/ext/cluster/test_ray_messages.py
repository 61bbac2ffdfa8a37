import pytest

from modelserver.ext.cluster import ray_messages as messages


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (messages.decode_to_helper, message)
        for message in (
            messages.PlaceActors(1, "a:b:1", ["{}\n"], {"num_cpus": 0.5, "label_selector": {"zone": "a"}}),
            messages.WatchActors(1, "a"),
            messages.WithdrawActors("a"),
        )
    ]
    + [
        (messages.decode_from_helper, message)
        for message in (
            messages.ClusterJoined("2.60.0", "0.1.0", 3),
            messages.ClusterRefused("two\nlines"),
            messages.ActorsPlaced(1),
            messages.ActorEnded(1, "it ended"),
            messages.RayState("", "Ray has", "no node"),
        )
    ],
)
def test_messages_are_one_line(decode, message):
    line = messages.encode(message)
    assert b"\n" not in line
    assert decode(line) == message


def test_an_invitation_is_not_printed():
    """A request that is printed, in a traceback or a log, keeps it secret."""
    assert "secret" not in repr(messages.PlaceActors(1, "a", ["secret"], {}))
