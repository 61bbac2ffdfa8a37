from tests.engine.pools.conftest import begin, counts, spec, stage, times

__all__ = ["begin", "counts", "spec", "stage", "times"]
