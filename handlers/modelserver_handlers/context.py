"""What a handler knows about its model and the current batch (reference 12.4).

One :class:`Context` lives as long as its worker. What changes with each batch is in a :class:`BatchState`,
which belongs to a thread: the next batch is prepared in one thread while the current one runs in another, and
both see their own. A thread that never began a batch (one that a handler started) sees the latest.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from modelserver_handlers.streaming import ResponseStream


Lazy: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

# Whole numbers have 64 bits on the wire.
_WHOLE = 1 << 63

# Only set by the server: a client's header of the same name is ignored.
SERVER_PROPERTIES = frozenset({"explain", "describe", "url_path"})


class RequestProcessor:
    """One request's headers, and the status and headers of its answer."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}
        self._request_header = request_header
        self._ms_parameters: dict[str, bool | int | float | str] = {}

    def get_request_property(self, key: str) -> Any:
        """A request header's value, or None."""
        return self._request_header.get(key)

    def get_request_properties(self) -> Mapping[str, Any]:
        """All request headers."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status of the answer."""
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """The status of the answer."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """The reason phrase of the answer, None or empty for the standard one."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: Any) -> None:
        """Set a header of the answer; values other than str are converted."""
        self._response_header[key] = str(value)

    def get_response_headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """One header of the answer, or None."""
        return self._response_header.get(key)


class _LazyRequestProcessor(RequestProcessor):
    """Decodes the client's headers when they are first needed."""

    def __init__(self, source: Lazy, properties: Mapping[str, Any]) -> None:
        super().__init__({})
        self._source: Lazy | None = source
        self._properties = properties

    def get_request_property(self, key: str) -> Any:
        if key in SERVER_PROPERTIES:
            return self._properties.get(key)
        return self.get_request_properties().get(key)

    def get_request_properties(self) -> Mapping[str, Any]:
        if self._source is not None:
            headers = Headers(self._source() if callable(self._source) else self._source)
            headers.update(self._properties)
            self._request_header, self._source = headers, None
        return self._request_header


def with_gaps(answers: Any, size: int, rejected: Collection[int]) -> Any:
    """``answers`` with None in the places of rejected rows; unchanged unless they are one per other row."""
    if not rejected or not isinstance(answers, list) or len(answers) != size - len(rejected):
        return answers
    following = iter(answers)
    return [None if idx in rejected else next(following) for idx in range(size)]


def record_phases(context: Any, *seconds: float) -> None:
    """Add to the seconds of preprocess, inference and postprocess; does nothing outside the server."""
    state = getattr(context, "_ms_state", None)
    if state is not None:
        state.phases = tuple(before + more for before, more in zip(state.phases, seconds, strict=True))


class BatchState:
    """One batch as the context shows it.

    ``headers[i]`` and ``parameters[i]`` belong to request ``i`` and are mappings or callables that make one;
    nothing is decoded before a handler asks. ``properties[i]`` are the server's own (``explain``,
    ``describe``, ``url_path``); they win over headers of the same name. ``phases`` are the seconds spent in
    preprocess, inference and postprocess.
    """

    def __init__(
        self,
        request_ids: Sequence[str] = (),
        headers: Sequence[Lazy] = (),
        *,
        parameters: Sequence[Lazy] = (),
        properties: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.request_ids: dict[int, str] | None = dict(enumerate(request_ids)) or None
        self.rejections: dict[int, tuple[int, str]] = {}
        self.phases = (0.0, 0.0, 0.0)
        self.stream: ResponseStream | None = None
        self._headers = headers
        self._parameters = parameters
        self._properties = properties
        self._touched: dict[int, RequestProcessor] = {}
        self._replaced: list[RequestProcessor] | None = None

    def processor(self, idx: int) -> RequestProcessor:
        """Request ``idx``'s processor; raises IndexError outside the batch."""
        if self._replaced is not None:
            return self._replaced[idx]
        idx = self._position(idx)
        processor = self._touched.get(idx)
        if processor is None:
            source = self._headers[idx] if idx < len(self._headers) else {}
            properties = self._properties[idx] if idx < len(self._properties) else {}
            if properties or callable(source):
                processor = _LazyRequestProcessor(source, properties)
            else:
                processor = RequestProcessor(Headers(source))
            self._touched[idx] = processor
        return processor

    def touched(self, idx: int) -> RequestProcessor | None:
        """Request ``idx``'s processor if the handler used it: only then can it hold a status or headers."""
        if self._replaced is not None:
            return self._replaced[idx] if idx < len(self._replaced) else None
        return self._touched.get(idx)

    @property
    def processors(self) -> list[RequestProcessor]:
        """One processor per request; assigning a list replaces them."""
        if self._replaced is None:
            self._replaced = [self.processor(idx) for idx in range(len(self))]
        return self._replaced

    @processors.setter
    def processors(self, processors: list[RequestProcessor]) -> None:
        self._replaced = processors

    def parameters(self, idx: int) -> Mapping[str, Any]:
        """The other top-level fields of the V1 body that request ``idx`` came in."""
        if idx >= len(self._parameters):
            return {}
        source = self._parameters[idx]
        return source() if callable(source) else source

    def reject(self, idx: int, message: str, status: int = 400) -> None:
        """Answer request ``idx`` with its own error; raises IndexError outside the batch."""
        self.rejections[self._position(idx)] = (status, message)

    def __len__(self) -> int:
        if self._replaced is not None:
            return len(self._replaced)
        return max(len(self.request_ids or ()), len(self._headers), 1)

    def _position(self, idx: int) -> int:
        size = len(self)
        if not -size <= idx < size:
            raise IndexError(f"request {idx} of a batch of {size}")
        return idx % size


class Context:
    """A model's properties, and the requests of the current batch.

    The same object for the worker's life; handlers may attach their own attributes. ``metrics`` is what they
    report to (reference 13.6).
    """

    metrics: Any = None
    # In a worker with an event loop: ends the process, for the reason in a WorkerUnusable.
    _ms_leave: Any = None

    def __init__(  # noqa: PLR0917 - TorchServe's signature
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self._system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.model_yaml_config: dict[str, Any] = {} if model_yaml_config is None else model_yaml_config
        self.metrics = metrics
        self.stopping_criteria: Any = None
        self.cl_socket: Any = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"
        self._ms_warnings: list[str] = []
        self._ms_precision: dict[str, str] = {}
        self._ms_latest = BatchState()
        self._ms_of_thread = threading.local()

    def _ms_warn(self, message: str) -> None:
        """While the model is loading: add a warning to the response to its registration."""
        self._ms_warnings.append(message)

    def _ms_set_precision(self, requested: str, used: str, why: str) -> None:
        """While the model is loading: the precision for its description; ``requested`` may be ``default``."""
        self._ms_precision = {"asked": requested, "used": used, "why": why}

    def _ms_begin(self, state: BatchState) -> None:
        """Make ``state`` the current batch of the calling thread."""
        self._ms_of_thread.state = self._ms_latest = state

    def _ms_of_request(self, state: BatchState) -> Context:
        """A separate context for one of several concurrent calls; what handlers attached is shared.

        TorchServe copies all of that for each request.
        """
        own = copy.copy(self)
        own._ms_of_thread = threading.local()
        own._ms_latest = state
        return own

    @property
    def _ms_state(self) -> BatchState:
        """The current batch of the calling thread, or the latest one begun by any."""
        state: BatchState = getattr(self._ms_of_thread, "state", self._ms_latest)
        return state

    @property
    def system_properties(self) -> dict[str, Any]:
        """``model_dir``, ``gpu_id``, ``batch_size``, ``limit_max_image_pixels``, server name and version."""
        return self._system_properties

    @property
    def request_ids(self) -> dict[int, str] | None:
        """Position in the batch to request id; None before the first batch."""
        return self._ms_state.request_ids

    @request_ids.setter
    def request_ids(self, request_ids: dict[int, str] | None) -> None:
        self._ms_state.request_ids = request_ids

    @property
    def request_processor(self) -> list[RequestProcessor]:
        """One processor per request of the batch."""
        return self._ms_state.processors

    @request_processor.setter
    def request_processor(self, request_processor: list[RequestProcessor]) -> None:
        self._ms_state.processors = request_processor

    # Public handlers also read the requests under this name.
    _request_processor = request_processor

    def get_request_id(self, idx: int = 0) -> str | None:
        """Request ``idx``'s id."""
        request_ids = self.request_ids
        return None if request_ids is None else request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """A header of request ``idx``, ignoring case, or None."""
        return self._ms_state.processor(idx).get_request_property(key)

    def get_all_request_header(self, idx: int) -> Mapping[str, Any]:
        """All headers of request ``idx``."""
        return self._ms_state.processor(idx).get_request_properties()

    def get_request_parameters(self, idx: int) -> dict[str, Any]:
        """Request ``idx``'s other top-level V1 fields (``parameters`` etc.); not in TorchServe."""
        return dict(self._ms_state.parameters(idx))

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of answer ``idx``."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The content type set for answer ``idx``, or None."""
        return self._ms_state.processor(idx).get_response_header("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of answer ``idx``; a phrase that is not empty replaces the standard one."""
        self._ms_state.processor(idx).report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of every answer of the batch."""
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Status and phrase of answer ``idx``."""
        processor = self._ms_state.processor(idx)
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of answer ``idx``."""
        self._ms_state.processor(idx).add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """The headers set for answer ``idx``."""
        return self._ms_state.processor(idx).get_response_headers()

    def set_response_parameter(self, idx: int, name: str, value: bool | int | float | str) -> None:
        """Set a parameter of the V2 response, beside the outputs of answer ``idx``; not in TorchServe.

        If several rows of a request set the same one, the first counts. Other protocols do
        not support it.

        Raises:
            TypeError: the value is neither text, a number nor a boolean.
            ValueError: the number is not finite, or has more than 64 bits.
        """
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(f"the parameter {name} is {type(value).__name__}: text, number or bool is needed")
        whole = isinstance(value, int)
        if not isinstance(value, str) and not (-_WHOLE <= value < _WHOLE if whole else math.isfinite(value)):
            raise ValueError(f"the parameter {name}={value} has no form on the wire")
        self._ms_state.processor(idx)._ms_parameters[str(name)] = value

    def get_sequence_id(self, idx: int) -> Any:
        """The sequence that request ``idx`` belongs to, or None."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def reject(self, idx: int, message: str, status: int = 400) -> None:
        """Answer instance ``idx`` with its own error, and the others as usual; not in TorchServe.

        Raises IndexError outside the batch.
        """
        self._ms_state.reject(idx + getattr(self._ms_of_thread, "first", 0), message, status)

    @contextlib.contextmanager
    def _ms_count_from(self, first: int) -> Iterator[None]:
        """Within, :meth:`reject` counts from row ``first`` in the calling thread, which processes a part."""
        self._ms_of_thread.first = first
        try:
            yield
        finally:
            self._ms_of_thread.first = 0

    def is_cancelled(self, idx: int = 0) -> bool:
        """Whether the client of request ``idx`` has gone, so its answer is not needed; not in TorchServe.

        Raises IndexError outside the batch.
        """
        stream = self._ms_state.stream
        return False if stream is None else stream.is_cancelled(idx)

    @property
    def _ms_rejections(self) -> dict[int, tuple[int, str]]:
        """Rejected instances of the current batch: position to (status, message)."""
        return self._ms_state.rejections

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self._ms_comparable() == other._ms_comparable()

    __hash__ = None  # type: ignore[assignment]

    def _ms_comparable(self) -> dict[str, Any]:
        hidden = {"_ms_latest", "_ms_leave", "_ms_of_thread"}
        return {name: value for name, value in self.__dict__.items() if name not in hidden}


class Headers(dict[str, Any]):
    """A dict of headers that keeps the client's case; lookups ignore case.

    Names that differ only in case are both kept, as in TorchServe (reference 7.3); a lookup in a third
    case finds the later one. Deleting and replacing need the exact name.
    """

    def _actual(self, key: object) -> str | None:
        if isinstance(key, str):
            lower = key.lower()
            return next((name for name in reversed(self) if name.lower() == lower), None)
        return None

    def __missing__(self, key: str) -> Any:
        actual = self._actual(key)
        if actual is None:
            raise KeyError(key)
        return self[actual]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._actual(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value under ``key``, ignoring case, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def copy(self) -> Headers:
        """A copy with the same entries."""
        return Headers(self)
