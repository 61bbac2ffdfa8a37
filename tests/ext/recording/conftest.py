from tests.recorded_calls import make_call

__all__ = ["make_call"]
