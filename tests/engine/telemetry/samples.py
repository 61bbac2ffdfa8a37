from modelserver.engine.telemetry.metrics import ServerMetrics

HOST = '{Level="Host",Hostname="h"}'
MODEL = '{model_name="m",model_version="1.0"'


def samples(metrics: ServerMetrics, *names: str) -> dict[str, float]:
    lines = b"".join(metrics.pieces(names)).decode().splitlines()
    return {key: float(value) for key, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}
