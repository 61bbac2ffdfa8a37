"""Calls for the tests of replays."""

from tests.recorded_calls import make_call

__all__ = ["make_call"]
