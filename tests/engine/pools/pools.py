import asyncio

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Row

LIMITS = PoolLimits(batch_size=2, policy="greedy", max_delay=0.0, max_requests=10, max_bytes=10_000)


def now() -> float:
    return asyncio.get_running_loop().time()


def request(*bodies: bytes, key: object = None, deadline: float | None = None) -> Request:
    rows = [Row("id", len(body)) for body in bodies]
    return Request("id", rows, bodies, now(), key=key, deadline=deadline)


def contents(sent: Request) -> list[bytes | None]:
    return [answer and answer[1] for answer in sent.answers]


def submit(pool: Pool, *requests: Request) -> None:
    for each in requests:
        pool.submit(each)
