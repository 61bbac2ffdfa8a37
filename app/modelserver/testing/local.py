"""``modelserver.testing.client``: a model in a worker of its own, asked without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from modelserver.engine.pools.spec import Forker
from modelserver.models.changes import Change
from modelserver.models.options.resolve import Registration
from modelserver.models.settings.load import LoadedSettings, load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.models.version import ModelVersion
from modelserver.testing.answer import Answer, as_body
from modelserver.testing.engine import Engine, EngineRequest, engine
from modelserver.tools.serve.options import locate_source
from modelserver.tools.serve.script import source_of

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")

_OF_REGISTRATIONS = {field.name for field in fields(Registration)} - {"url", "trusted"}


def client(
    handler_or_archive: str | os.PathLike[str] | type[Any] | Callable[..., Any],
    *,
    model_file: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Client:
    """A client of one model, to be used as a context manager, which loads the model and ends its worker.

    The model is loaded in a real worker, as the server does it, and its answers are those of the server: the
    same codecs, batches, limits and errors, without sockets.

    Args:
        handler_or_archive: a class or function of a script; or what ``modelserver serve`` takes:
            ``handler.py``, ``handler.py:NAME``, an archive, its folder, a model file or a URL.
        model_file: weights for a script.
        settings: options of a registration, such as ``batch_size=8``, or keys of ``config.properties``, such
            as ``install_py_dep_per_model=True``; ``ts_config`` names such a file.

    Raises:
        TypeError: no such option or setting.
        ConfigError: a value or file that is not usable.
        ValueError: a class or function that a worker cannot import.
    """
    source = handler_or_archive
    text = os.fspath(source) if isinstance(source, (str, os.PathLike)) else source_of(source)
    weights = None if model_file is None else os.fspath(model_file)
    return Client(text, model_file=weights, settings=settings)


class Client:
    """See :func:`client`. ``name`` is the model's, once it is loaded.

    ``start`` makes what starts the workers, in the event loop of the model, instead of the ordinary ones.
    """

    def __init__(
        self,
        source: str,
        *,
        model_file: str | None = None,
        settings: Mapping[str, Any] | None = None,
        start: Callable[[], Forker] | None = None,
    ) -> None:
        self.url, self.file, _ = locate_source(source, model_file)
        self.name = ""
        self._registration, self._loaded = _configured(self.url, self.file, settings or {})
        self._start = start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = contextlib.AsyncExitStack()
        self._opening: asyncio.Task[Any] | None = None
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        """Loads the model. Raises ModelServerError, whose message says why it cannot be loaded."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="modelserver", daemon=True)
        self._thread.start()
        try:
            self._engine = self.run(self._open())
        except BaseException:
            self.close()
            raise
        self.name = self._engine.model.name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self) -> Engine:
        self._opening = asyncio.current_task()
        spawner = None if self._start is None else self._start()
        return await self._stack.enter_async_context(engine(self._loaded, self._registration, spawner))

    def close(self) -> None:
        """Ends the worker; a second call does nothing."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for last in (self._end(), loop.shutdown_asyncgens(), loop.shutdown_default_executor()):
            asyncio.run_coroutine_threadsafe(last, loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _end(self) -> None:
        if self._opening is not None:
            # Only an interrupted start is not done.
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._stack.aclose()

    # -- asking

    def predict(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a request to ``/predictions``.

        ``body``: bytes are sent as they are, a ``pathlib.Path`` is a file's content, text is sent as such,
        and other values as JSON. ``headers`` may set another content type.
        """
        return self.post(self._prediction, body, headers)

    def predict_batch(self, bodies: Sequence[Any], headers: Mapping[str, str] | None = None) -> list[Answer]:
        """The answers to requests to ``/predictions`` that arrive together.

        As many as ``batch_size`` are one call of the handler; an answer's ``batch_size`` tells how many were.
        """
        return self.post_all([(self._prediction, body, headers) for body in bodies])

    def v1(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a V1 request: a list is its instances, anything else its whole body."""
        whole = {"instances": body} if isinstance(body, (list, tuple)) else body
        return self.post(f"/v1/models/{self._quoted}:predict", whole, headers)

    def v2(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a V2 request: a list is its inputs, anything else its whole body."""
        whole = {"inputs": body} if isinstance(body, (list, tuple)) else body
        return self.post(f"/v2/models/{self._quoted}/infer", whole, headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a request to any path for inference, such as ``/explanations/NAME``.

        Raises ValueError for another path.
        """
        return self.request("POST", path, body, headers)

    def request(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer to a request of this method, as ASGI applications take them.

        Raises ValueError for a path that is not for inference.
        """
        (answer,) = self.run(self._opened.send([_engine_request(method, path, body, headers)]))
        return answer

    def post_all(self, requests: Sequence[tuple[str, Any, Mapping[str, str] | None]]) -> list[Answer]:
        """The answers to requests that arrive together, each a path, a body and headers."""
        return self.run(self._opened.send([_engine_request("POST", *request) for request in requests]))

    # -- the model

    @property
    def model(self) -> ModelVersion:
        """The model as the server has it; to be read only."""
        return self._opened.model

    def change(self, **options: Any) -> None:
        """Changes options of the running model, as ``PUT /models/NAME`` does.

        Raises ModelServerError if that is not possible for it.
        """
        opened = self._opened
        self.run(opened.services.registry.change(self.name, None, Change.of(**options)))

    @property
    def _opened(self) -> Engine:
        if self._engine is None or self._loop is None:
            raise ValueError("the client is not open: use it in a with statement")
        return self._engine

    @property
    def _quoted(self) -> str:
        return quote(self.name, safe="")

    @property
    def _prediction(self) -> str:
        return f"/predictions/{self._quoted}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does work in the event loop of the model, and waits for it."""
        assert self._loop is not None  # noqa: S101 - it is open
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _engine_request(method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> EngineRequest:
    content, kind = as_body(body)
    own = {name.lower(): value for name, value in (headers or {}).items()}
    return method, path, content, {**({"content-type": kind} if kind else {}), **own}


def _configured(
    url: str, file: Path | None, settings: Mapping[str, Any]
) -> tuple[Registration, LoadedSettings]:
    """The registration and the settings. Raises TypeError, ConfigError, BadRequest."""
    unknown = settings.keys() - _OF_REGISTRATIONS - KEYS.keys() - {"ts_config"}
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))}: not an option of a registration, nor a key of config.properties"
        )
    options = {name: settings[name] for name in settings.keys() & _OF_REGISTRATIONS}
    if options.keys().isdisjoint({"max_batch_delay", "max_latency", "batch_policy"}):
        # What arrives together is a batch, and waits for nothing else.
        options["batch_policy"] = "greedy"
    own = {
        "model_store": Path.cwd() if file is None else file.parent,
        "load_models": "",
        "default_workers_per_model": 1,
        "expose_errors": "true",
    }
    flags = {**own, **{name: _as_flag(settings[name]) for name in settings.keys() - options.keys()}}
    # Without the variables and the config.properties that happen to be where the tests run.
    loaded = load_settings(flags, {}, Path(tempfile.gettempdir()))
    return Registration(url=url, trusted=True, **{"min_workers": 1, "max_workers": 1, **options}), loaded


def _as_flag(value: Any) -> Any:
    if isinstance(value, bool):
        # As flags, False means that nothing is said.
        return str(value).lower()
    return Path(value).absolute() if isinstance(value, os.PathLike) else value
