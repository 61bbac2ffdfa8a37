"""An installation of TorchServe for the tests, and a server that plays what TorchServe answered there.

``python -m tests.tools.migrate.sites ENVIRONMENT`` asks the real one again and writes ``recorded.json``.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.differential.archives import MODEL_CODE
from tests.recorded_answers import answer_of

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.migrate.archives import read_archive
from modelserver.tools.migrate.calls import Probe, Response, readable
from modelserver.tools.migrate.comparison import masked
from modelserver.tools.migrate.installation import launch_torchserve, read_installation
from modelserver.tools.migrate.requests import Subject, requests_of
from modelserver.tools.migrate.servers import ComparedServer, started

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
CONFIG = """\
inference_address=http://127.0.0.1:8080
management_address=http://127.0.0.1:8081
metrics_address=http://127.0.0.1:8082
model_store=store
load_models=parts.mar,plain.mar,reads.mar
default_workers_per_model=1
number_of_netty_threads=4
models={"plain": {"1.0": {"minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 1}}}
"""


def build_site(folder: Path) -> Path:
    """A model store with three handlers that do without torch, and the configuration beside it."""
    store = folder / "store"
    store.mkdir(parents=True)
    own = HERE / "model_code"
    for handler in (own / "parts.py", MODEL_CODE / "plain.py", own / "reads.py"):
        build_archive(ArchiveConfig(handler.stem, str(handler), "1.0", export_path=store))
    config = folder / "config.properties"
    config.write_text(CONFIG.replace("=store", f"={store}"), "utf-8")
    return config


def key_of(port: str, method: str, path: str, body: bytes) -> str:
    request = readable(body) if len(body) < 200 else hashlib.sha256(body).hexdigest()
    return f"{port} {method} {path} {json.dumps(request)}"


def record(environment: Path) -> None:
    """Sends all of the command's requests to the real TorchServe."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = build_site(folder / "site")
        program = str(environment.resolve() / "bin" / "torchserve")
        installation = read_installation(config, program, {}, {})
        with started(launch_torchserve(installation, folder / "torchserve")) as server:
            subjects = [
                Subject(version, read_archive(version.url, installation.store, folder / "archives"))
                for version in server.versions()
            ]
            request = [*requests_of("builtin", subjects, None), *_lists(server)]
            answers = {
                key_of(c.port, c.method, c.path, c.body): _stored(server.ask(c)).to_json() for c in request
            }
    RECORDED.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _stored(answer: Response) -> Response:
    return masked(answer) if (answer.body or b"").startswith(b'{\n  "openapi"') else answer


def _lists(server: ComparedServer) -> list[Probe]:
    paths = ["/models?limit=100", *(f"/models/{version.name}/all" for version in server.versions())]
    return [Probe("", "management", "GET", path) for path in paths]


def recorded() -> dict[str, Response]:
    document = json.loads(RECORDED.read_text("utf-8"))
    return {key: answer_of(answer) for key, answer in document.items()}


@contextlib.contextmanager
def playing(answers: Mapping[str, Response]) -> Iterator[dict[str, str]]:
    """A server on three ports that gives these answers; what it does not know is 404. Gives its URLs."""
    servers = {}
    for port in ("inference", "management", "metrics"):
        handler = type("Player", (_Player,), {"port": port, "answers": answers})
        servers[port] = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=servers[port].serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield {port: f"http://127.0.0.1:{server.server_address[1]}" for port, server in servers.items()}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


class _Player(BaseHTTPRequestHandler):
    port = ""
    answers: Mapping[str, Response]
    protocol_version = "HTTP/1.1"

    def _play(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.answers.get(key_of(self.port, self.command, self.path, body))
        if answer is None:
            answer = Response(404, "Not Found", {"content-type": "text/plain"}, b"not recorded")
        self.send_response_only(answer.status, answer.reason)
        sent = answer.body or b""
        for name, value in answer.headers.items():
            if name != "content-length":
                self.send_header(name, value)
        if "transfer-encoding" in answer.headers:
            sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent)
        else:
            self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_HEAD = _play  # noqa: N815


if __name__ == "__main__":
    record(Path(sys.argv[1]))
