from tests.recorded_calls import make_call  # noqa: F401 - a fixture
