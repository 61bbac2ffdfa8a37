"""vLLM's engine in this server, behind vLLM's own front end, and alone, in turns; then a pretended engine."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
from typing import TYPE_CHECKING, Final

from benchmarks.language import Turn, request, rounds
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, ROOT, Running, accepts, model_server, process, wait_until
from modelserver.tools.tune.own_server import free_ports

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TOKENS: Final = 64
_OURS, _FRONT, _BARE = "modelserver", "vllm serve", "the engine alone"
_SETTINGS: Final = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 64, "enforce_eager": True}
_FLAGS: Final = (
    "--dtype float32 --max-model-len 512 --max-num-seqs 64 --enforce-eager --served-model-name chat --model"
)
_PEER: Final = "benchmarks.peers.apps.vllm_language"
_PATIENCE: Final = 290  # seconds until an engine has started
_PATH: Final = ":".join(str(ROOT / part) for part in ("app", "handlers", "."))
_VARIABLES: Final = {"PYTHONPATH": _PATH, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
_MESSAGES: Final = [{"role": "user", "content": "What is a tensor?"}]
_BODY: Final = {"model": "chat", "messages": _MESSAGES, "max_tokens": TOKENS, "ignore_eos": True}
# A Llama of 3 million parameters.
_MAKE: Final = "import pathlib, tests.differential.tiny_models as t; t.make_llama(pathlib.Path({!r}))"
_HANDLER: Final = f"""import {_PEER} as peer
peer.async_llm.AsyncLLM = peer.Pretended
from modelserver_handlers.language.vllm_handler import VLLMHandler as Handler
"""


@contextlib.contextmanager
def _ours(folder: Path, python: str, model: Path, *, pretended: bool) -> Iterator[Running]:
    chat = folder / "store" / "chat"
    (chat / "MAR-INF").mkdir(parents=True)
    handler = "pretended.py:Handler" if pretended else "vllm_handler"
    manifest = {"modelName": "chat", "modelVersion": "1", "handler": handler, "configFile": "config.yaml"}
    (chat / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": manifest}), "utf-8")
    (chat / "pretended.py").write_text(_HANDLER, "utf-8")
    settings = {"model_path": str(model), "vllm_engine_config": _SETTINGS}
    (chat / "config.yaml").write_text(json.dumps({"handler": settings, "startupTimeout": _PATIENCE}), "utf-8")
    with model_server(chat.parent, folder, variables=_VARIABLES, python=python) as server:
        server.register("chat", "chat")
        yield server


@contextlib.contextmanager
def _peer(folder: Path, python: str, model: Path, kind: str) -> Iterator[Running]:
    (port,) = free_ports(1)
    command = [python, "-m", _PEER, kind, *_FLAGS.split(), str(model), "--host", HOST, "--port", str(port)]
    folder.mkdir()
    with process(command, folder, _VARIABLES) as child:
        wait_until(child, lambda: accepts(port), f"{folder / 'output'}: it does not listen", _PATIENCE)
        yield Running(child.pid, port, folder)


def _compare(
    servers: Mapping[str, Running], options: argparse.Namespace, connections: tuple[int, ...], least: float
) -> None:
    """Prints the table of all, and the marks."""
    more = {"stream": True, "stream_options": {"include_usage": True}}
    rows: list[list[str]] = []
    marks: list[Mark] = []
    for work, fields in (("streamed", {**_BODY, **more}), ("whole", _BODY)):
        message = request("/v1/chat/completions", fields)
        for clients in connections:
            turns = rounds(servers, message, clients, options, TOKENS)
            medians = {name: _medians(each) for name, each in turns.items()}
            what = f"{work}, {clients} clients"
            rows += [[what, name, *map(number, each)] for name, each in medians.items()]
            mine, other = medians[_OURS], medians[_FRONT]
            marks += [Mark(f"{what}: tokens/s beside the front end's", mine[0] / other[0], ">=", least)]
            marks += [Mark(f"{what}: processor time beside the front end's", mine[1] / other[1], "<=", 0.5)]
            if _BARE in medians and (work, clients) == ("streamed", 1):
                later = mine[3] - medians[_BARE][3]
                marks += [Mark("first token after the engine's", later, "<=", 2.0, " ms")]
    print(table(["", "", "tokens/s", "µs a token", "µs a request", "first after ms"], rows))
    print("\n".join(map(str, marks)))


def _medians(turns: list[Turn]) -> tuple[float, float, float, float]:
    """Tokens a second, µs outside the engine for a token and for a request, ms until the first token."""
    rate = statistics.median(each.pieces / each.seconds for each in turns)
    cost = statistics.median(1e6 * each.outside / each.pieces for each in turns)
    return rate, cost, cost * TOKENS, statistics.median(1e3 * each.first for each in turns)


def measure(options: argparse.Namespace, python: str, folder: Path) -> None:
    """The tiny model, and then the pretended engine."""
    model = folder / "model"
    subprocess.run([python, "-c", _MAKE.format(str(model))], check=True, cwd=ROOT, env=_VARIABLES)
    for pretended, clients, least in ((False, (1, 8, 64), 1.0), (True, (64,), 3.0)):
        place = folder / ("pretended" if pretended else "engine")
        place.mkdir()
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(_ours(place / "ours", python, model, pretended=pretended))
            kinds = {_FRONT: "pretended"} if pretended else {_FRONT: "serve", _BARE: "bare"}
            peers = {name: _peer(place / kind, python, model, kind) for name, kind in kinds.items()}
            servers = {_OURS: ours} | {name: stack.enter_context(peer) for name, peer in peers.items()}
            print(f"\n{place.name}, {TOKENS} tokens; processor time outside of vLLM's engine")
            _compare(servers, options, clients, least)
