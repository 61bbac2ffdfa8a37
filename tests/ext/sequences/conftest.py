from tests.engine.pools.conftest import begin, counts, spec, stage, times  # noqa: F401 - fixtures
