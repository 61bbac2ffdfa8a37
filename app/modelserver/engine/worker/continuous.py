"""Continuous batching: requests join and leave between calls of the handler (reference 8.10).

The handler is called repeatedly, each time for the requests in the batch at that moment; its answers are sent
as parts, until ``context.stopping_criteria`` says that a request is finished.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from modelserver.engine.wire.messages import DESCRIBE, Cancelled, Parts, Ping, Pong, Predict, Stop
from modelserver.engine.worker import tracing
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.rows.rows import request_parameters
from modelserver.engine.worker.service import Service, leave_if_broken, report_failure, timed
from modelserver.engine.worker.streaming import CLIENT_GONE, unique_id
from modelserver.engine.worker.work import Encoded, Work, rejection
from modelserver_handlers import gpu_errors
from modelserver_handlers.context import BatchState, RequestProcessor
from modelserver_handlers.contract import check_contract
from modelserver_handlers.streaming import ClientsGone


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request in the batch, with the same headers and status in all calls. ``known``: it had a call.

    ``id`` is unique in the batch, as handlers keep a request's state by it.
    """

    id: str
    work: Work
    processor: RequestProcessor
    known: bool = False
    seconds: float = 0.0

    @property
    def data(self) -> Any:
        """The handler's input: the content in the first call, then an empty dict."""
        decoded = self.work.decoded[0]
        return {} if self.known or decoded is None else decoded.data


class ContinuousBatch:
    """Calls the handler for the current requests, until the server sends stop or disconnects.

    The server limits the number of requests. A call that fails ends all requests in it.
    """

    def __init__(self, service: Service, channel: ServerChannel) -> None:
        self._service = service
        self._channel = channel
        self._members: list[RunningRequest] = []
        self._stopping = False

    def serve(self) -> None:
        """Returns when all requests are answered after a stop, or when the server is gone."""
        while self._channel.is_open and (self._members or not self._stopping):
            self._take_in()
            for member in [member for member in self._members if member.work.cancelled]:
                self._release(member, CLIENT_GONE)
            if self._members:
                self._step()
                leave_if_broken(self._service)

    def _take_in(self) -> None:
        """Adds new requests; waits for them only if there are none."""
        for message, tail in self._channel.take(wait=not self._members):
            if isinstance(message, Predict):
                self._channel.begin(message.sequence)
                self._join(self._service.take(message, tail))
            elif isinstance(message, Cancelled):
                self._service.cancel(message)
            elif isinstance(message, Ping):
                self._channel.send(Pong())
            elif isinstance(message, Stop):
                self._stopping = True

    def _join(self, work: Work) -> None:
        if work.open and work.rows[0].kind != DESCRIBE:
            name = unique_id(work.rows[0].request_id, work.sequence, {member.id for member in self._members})
            self._members.append(RunningRequest(name, work, self._service.state(work, [0]).processor(0)))
            return
        seconds = timed(lambda: self._service.run(work))
        self._channel.send(*self._service.finish(work, seconds))
        leave_if_broken(self._service)

    def _release(self, member: RunningRequest, answer: Encoded) -> None:
        """The request leaves with its last answer."""
        self._members.remove(member)
        member.work.answers[0] = answer
        self._channel.send(*self._service.finish(member.work, member.seconds))

    def _step(self) -> None:
        members = list(self._members)
        state = self._state(members)
        data = [member.data for member in members]
        started = time.perf_counter()
        failed: Exception | None = None
        outputs: Any = None
        traces = [member.work.trace for member in members if member.work.trace]
        token = tracing.enter(*traces) if traces else None
        try:
            outputs = self._service.call(data, state)
            check_contract(outputs, len(members))
        except ClientsGone:
            # They are removed before the next call.
            return
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            failed = error
        finally:
            tracing.leave(token)
            self._close(members, state, time.perf_counter() - started)
        if failed is None:
            self._hand_out(members, outputs, state)
            return
        report_failure(failed, [member.work.rows[0] for member in members])
        for position, member in enumerate(members):
            refused = rejection(state, position)
            self._release(member, refused or self._service.describe(failed, member.work.rows[0]))
        if self._service.broken is None:
            gpu_errors.release(failed)

    def _close(self, members: Sequence[RunningRequest], state: BatchState, seconds: float) -> None:
        if state.stream is not None:
            state.stream.close()
        members[0].work.metrics += self._service.metrics.collect() or []
        for member in members:
            member.known = True
            member.seconds += seconds
            member.work.calls = 1
            member.work.add_phases(state.phases)

    def _state(self, members: Sequence[RunningRequest]) -> BatchState:
        rows = [member.work.rows[0] for member in members]
        parameters = [partial(request_parameters, row) for row in rows]
        state = BatchState([member.id for member in members], parameters=parameters)
        state.processors = [member.processor for member in members]
        state.stream = self._service.stream([(member.work, 0) for member in members], state)
        return state

    def _hand_out(self, members: Sequence[RunningRequest], outputs: list[Any], state: BatchState) -> None:
        for position, member in enumerate(members):
            work = member.work
            try:
                is_last = self._is_last(position, outputs[position])
            except Exception as error:  # noqa: BLE001 - a criterion is user code
                report_failure(error, work.rows[:1])
                self._release(member, self._service.describe(error, work.rows[0]))
                continue
            answer, content = self._service.encode_part(work, 0, outputs[position], position, state)
            if is_last or answer.failed:
                # After one call only it is a normal answer; TorchServe writes a chunk without a head (fix).
                self._release(member, (answer, content))
            elif not work.cancelled:
                self._channel.send(Parts([work.sequence], [0], [answer]), [content])
                work.started = frozenset({0})

    def _is_last(self, position: int, output: Any) -> bool:
        """Whether this is the last answer: the only one, unless a criterion returns False."""
        criteria = self._service.context.stopping_criteria
        criterion = criteria[position] if criteria and position < len(criteria) else None
        ended = None if criterion is None else criterion(output)
        return ended is None or bool(ended)
