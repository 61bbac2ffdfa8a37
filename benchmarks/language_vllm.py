"""vLLM's engine in this server, behind vLLM's own front end, and alone, in turns; then a pretended engine."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.language import PATIENCE, medians, peer, request, rounds
from benchmarks.options import Options
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, ROOT, Running, model_server

_FEW: Final = 4
_OURS, _FRONT, _BARE = "modelserver", "vllm serve", "the engine alone"
_SETTINGS: Final = {"dtype": "float32", "max_num_seqs": 256, "enforce_eager": True}
_FLAGS: Final = "--dtype float32 --max-num-seqs 256 --enforce-eager --served-model-name chat --model"
_PEER: Final = "benchmarks.peers.apps.vllm_language"
_PATH: Final = ":".join(str(ROOT / part) for part in ("app", "handlers", "."))
_VARIABLES: Final = {"PYTHONPATH": _PATH, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
# Llamas of 3 and of 130 million parameters: width and layers.
_SIZES: Final = {"tiny": "256, 4", "medium": "1024, 12"}
_MAKE: Final = "import tests.differential.tiny_models as t; t.make_llama(t.Path({!r}), {}, length=2048)"
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
    (chat / "config.yaml").write_text(json.dumps({"handler": settings, "startupTimeout": PATIENCE}), "utf-8")
    with model_server(chat.parent, folder, variables=_VARIABLES, python=python) as server:
        server.register("chat", "chat")
        yield server


def _compare(servers: Mapping[str, Running], options: Options, counts: Sequence[int], least: float) -> None:
    """Prints the table of all, and the marks."""
    more = {"stream": True, "stream_options": {"include_usage": True}}
    # A sign of the long prompt is about a token.
    tokens, signs = (256, "%" * 900) if options.long else (64, "What is a tensor?")
    messages = [{"role": "user", "content": signs}]
    body = {"model": "chat", "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    rows: list[list[str]] = []
    marks: list[Mark] = []
    for work, fields in (("streamed", {**body, **more}), ("whole", body)):
        for clients in counts:
            turns = rounds(servers, request("/v1/chat/completions", fields), clients, options, tokens)
            figures = {name: medians(each) for name, each in turns.items()}
            what = f"{work}, {clients} clients"
            for name, (rate, _, _, cost, first) in figures.items():
                rows.append([what, name, *map(number, (rate, cost, cost * tokens, first))])
            mine, other = figures[_OURS], figures[_FRONT]
            marks += [Mark(f"{what}: tokens/s beside the front end's", mine[0] / other[0], ">=", least)]
            marks += [Mark(f"{what}: processor time beside the front end's", mine[3] / other[3], "<=", 0.5)]
    print(table(["", "", "tokens/s", "µs a token", "µs a request", "first after ms"], rows))
    if _BARE in servers:
        # Short answers: many in a turn.
        short = request("/v1/chat/completions", {**body, **more, "max_tokens": _FEW})
        turns = rounds(servers, short, 1, options, _FEW)
        firsts = {name: medians(each)[-1] for name, each in turns.items()}
        marks += [Mark("first token after the engine's", firsts[_OURS] - firsts[_BARE], "<=", 2.0, " ms")]
        for name, each in turns.items():
            print(f"{name}: first after {firsts[name]:.1f} ms, {sum(turn.answers for turn in each)} answers")
    print("\n".join(map(str, marks)))


def measure(options: Options, python: str, folder: Path) -> None:
    """The tiny model, and then the pretended engine."""
    model = folder / "model"
    make = _MAKE.format(str(model), _SIZES[options.size])
    subprocess.run([python, "-c", make], check=True, cwd=ROOT, env=_VARIABLES)
    for pretended, clients, least in ((False, options.clients, 1.0), (True, (64,), 3.0)):
        place = folder / ("pretended" if pretended else "engine")
        place.mkdir()
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(_ours(place / "ours", python, model, pretended=pretended))
            kinds = {_FRONT: "pretended"} if pretended else {_FRONT: "serve", _BARE: "bare"}
            servers = {_OURS: ours}
            for name, kind in kinds.items():
                command = [python, "-m", _PEER, kind, *_FLAGS.split(), str(model), "--host", HOST, "--port"]
                servers[name] = stack.enter_context(peer(place / kind, command, _VARIABLES))
            print(f"\n{place.name}, {options.size} model; processor time outside of vLLM's engine")
            _compare(servers, options, clients, least)
