"""One run of ``modelserver serve``: the start, a request, and what happens when files change."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import mimetypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.engine.pools.output import without_quote
from modelserver.errors import ConfigError, ModelServerError
from modelserver.ext import EXTENSIONS
from modelserver.ext.forking.spawner import Spawner
from modelserver.ext.tokens.operator_tokens import read_token_file
from modelserver.models.builder import DOWNLOADING
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.replacing import replace_archive
from modelserver.models.settings.load import LoadedSettings
from modelserver.models.version import ModelVersion
from modelserver.run.server import Reports, Server
from modelserver.surface.auth.scopes import KEY_FILE, Scope
from modelserver.tools.serve.console import BOLD, DIM, GREEN, RED, Lines, from_here
from modelserver.tools.serve.example import command, shell_token, url_of

if TYPE_CHECKING:
    from modelserver.tools.serve.options import ServeOptions

_FAILED_TO_LOAD: Final = "Failed to load model: "
_UNKNOWN_TYPE: Final = "application/octet-stream"
# Characters of an answer that are shown, and bytes of JSON that are laid out for people.
_LONGEST: Final = 2000
_MOST_JSON: Final = 20_000
_PATIENCE: Final = 600.0


class Session:
    """Serves until it is stopped. ``status`` is the exit status: 1 if the model could not be served."""

    def __init__(
        self, options: ServeOptions, loaded: LoadedSettings, lines: Lines, spawner: Spawner | None = None
    ) -> None:
        self.status = 0
        self._options = options
        self._settings = loaded.settings
        self._lines = lines
        # The token is read before the server removes tokens from the environment.
        self._token = shell_token(loaded.settings, os.environ, Path.cwd())
        self._actual = os.path.expandvars(self._token) if self._token.startswith("$MODEL") else ""
        self._refused = ""
        self._server = Server(
            loaded,
            Reports(progress=self._progress, notice=self._notice),
            stamped_log=False,
            registrations=[options.registration],
            beside=self._attend,
            spawner=spawner,
            apps_late=True,
            extensions=EXTENSIONS,
        )

    async def run(self) -> None:
        """Returns when the server has stopped. Raises ConfigError (addresses)."""
        await self._server.run()

    def _progress(self, text: str) -> None:
        if text.startswith(DOWNLOADING):
            self._lines.say(text, DIM)

    def _notice(self, text: str) -> None:
        if text.startswith(_FAILED_TO_LOAD):
            self._refused = text.removeprefix(f"{_FAILED_TO_LOAD}{self._options.registration.url}: ")

    async def _attend(self, registry: Registry) -> None:
        try:
            await self._serve(registry)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._report_waiting(registry)
            raise

    def _report_waiting(self, registry: Registry) -> None:
        """Says why a server that is stopping takes a while."""
        statistics = [model.pool.statistics() for model in registry.versions()]
        if any(each.pending or each.batches_in_flight for each in statistics):
            wait = f"requests are answered for up to {self._settings.drain_timeout:g} s"
            self._lines.say(f"Stopping: {wait}; Ctrl-C again stops at once.", DIM)

    async def _serve(self, registry: Registry) -> None:
        models = registry.versions()
        if not models:
            self._give_up(self._refused)
            return
        name = models[0].name
        if await self._loaded(models[0]):
            self._welcome(models[0])
            await self._ask(models[0])
        elif not self._options.reload:
            self._give_up(models[0].pool.failure)
            return
        else:
            self._failed(models[0].pool.failure)
            self._lines.say("Waiting for a change of its files.", DIM)
        if self._options.reload:
            await self._reload(registry, name)

    def _give_up(self, reason: str) -> None:
        self._failed(reason)
        self.status = 1
        self._server.stop()

    def _failed(self, reason: str) -> None:
        # The worker's output has been printed already.
        message = without_quote(reason) or "unknown reason"
        self._lines.say(f"{self._lines.style('Not served:', RED, BOLD)} {message}")

    @staticmethod
    async def _loaded(model: ModelVersion) -> bool:
        """Whether a worker has loaded the model, once all have loaded or failed."""
        await asyncio.wait([worker.first_load for worker in model.pool.workers])
        return model.pool.ready

    def _welcome(self, model: ModelVersion) -> None:
        style, settings = self._lines.style, self._settings
        url = url_of(model, settings)
        body = None
        if self._options.input_file is not None:
            body = self._options.input_file, self._content_type(self._options.input_file)
        title = f"{style(model.name, BOLD)} is served from {from_here(self._options.source)}"
        rows = {
            "try": style(command(model, url, self._token, body), GREEN),
            "docs": f"{settings.inference_address}/docs",
            "manage": f"{settings.management_address}/docs",
            **({} if settings.console_url is None else {"console": settings.console_url}),
        }
        watching = " Its files are watched." if self._options.reload else ""
        lines = [f"  {style(f'{name:<8}', DIM)}{text}" for name, text in rows.items()]
        last = style(f"  Ctrl-C stops it.{watching}", DIM)
        self._lines.say("\n".join([f"{style('●', GREEN)} {title}", *lines, last]))

    # -- files that change

    async def _reload(self, registry: Registry, name: str) -> None:
        from modelserver.tools.serve.file_changes import changes  # noqa: PLC0415 - only with the flag

        assert self._options.file is not None  # noqa: S101 - checked with the flags
        async for changed in changes(self._options.file, self._options.model_file):
            named = ", ".join(sorted(path.name for path in changed)[:3])
            self._lines.say(f"{named} changed, loading it beside the one that serves", DIM)
            try:
                await self._replace(registry, name)
            except ModelServerError as error:
                self._report_not_loaded(registry, name, error.message)

    async def _replace(self, registry: Registry, name: str) -> None:
        began = time.monotonic()
        registration = Registration(url=self._options.registration.url)
        model = await asyncio.shield(await replace_archive(registry, name, None, registration))
        seconds = time.monotonic() - began
        self._lines.say(f"{self._lines.style('●', GREEN)} {name} is the new one now ({seconds:.1f} s)")
        await self._ask(model)

    def _report_not_loaded(self, registry: Registry, name: str, reason: str) -> None:
        # The model's name and URL are left out: the line before has them.
        message = without_quote(reason.partition(f"{self._options.registration.url!r}: ")[2] or reason)
        serves = "the one from before keeps serving" if registry.get(name).pool.ready else "nothing is served"
        self._lines.say(f"{self._lines.style('Not loaded', RED, BOLD)} ({serves}): {message}")

    # -- a request

    async def _ask(self, model: ModelVersion) -> None:
        path = self._options.input_file
        if path is None:
            return
        try:
            answer = await asyncio.to_thread(self._send, path, url_of(model, self._settings))
        except (OSError, http.client.HTTPException) as error:
            self._lines.say(f"{path}: {error}", RED)
            return
        self._lines.say(answer)

    def _send(self, path: Path, url: str) -> str:
        """Sends the file; returns the status, the times and the answer as text."""
        import httpx  # noqa: PLC0415 - only with --input

        body = path.read_bytes()
        headers = {"Content-Type": self._content_type(path)}
        if token := self._actual_token():
            headers["Authorization"] = f"Bearer {token}"
        began = time.perf_counter()
        response = httpx.post(url, content=body, headers=headers, timeout=_PATIENCE, trust_env=False)
        seconds = time.perf_counter() - began
        style = self._lines.style
        colour = GREEN if response.status_code < 400 else RED
        timing = response.headers.get("server-timing", "")
        first = f"{style(f'{path.name} → {response.status_code}', colour)} in {seconds * 1000:.1f} ms"
        times = style(f" ({timing})", DIM) if timing else ""
        return f"{first}{times}\n{display(response.content, response.headers.get('content-type'))}"

    def _content_type(self, path: Path) -> str:
        return self._options.content_type or mimetypes.guess_type(path.name)[0] or _UNKNOWN_TYPE

    def _actual_token(self) -> str:
        if self._token and not self._actual:
            with contextlib.suppress(ConfigError):
                return next(iter(read_token_file(Path(KEY_FILE)).get(Scope.INFERENCE, ())), "")
        return self._actual


def display(content: bytes, kind: str | None) -> str:
    """An answer for people: JSON on one line if it is short, the beginning of a long text, or the size."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(content)} bytes" + (f" of {kind}" if kind else "")
    if len(text) <= _MOST_JSON:
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text), ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(content)} bytes)"
