"""vLLM for ``language``: its server, ``serve OPTIONS…``; ``pretended``, over a pretended engine; ``bare``,
its engine with nothing in front but a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import uvloop  # type: ignore
from vllm import AsyncEngineArgs, CompletionOutput, RequestOutput, SamplingParams  # type: ignore
from vllm.entrypoints.launchers.api_server import entry  # type: ignore
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore
from vllm.inputs import tokens_input  # type: ignore
from vllm.sampling_params import RequestOutputKind  # type: ignore
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore
from vllm.v1.engine import async_llm  # type: ignore

AsyncLLM: Any = async_llm.AsyncLLM


class Pretended(AsyncLLM):  # type: ignore[misc, unused-ignore]
    """An engine of unlimited speed: each request gets a token in each turn of the event loop."""

    errored = False

    def __init__(self, vllm_config: Any, **_: Any) -> None:
        self.vllm_config, self.model_config = vllm_config, vllm_config.model_config
        self.scheduler_config, self.admission_stats = vllm_config.scheduler_config, None
        self.renderer = async_llm.renderer_from_config(vllm_config)
        self.input_processor = async_llm.InputProcessor(vllm_config, self.renderer)
        self._supported_tasks = ("generate",)

    async def reset_mm_cache(self) -> None:
        """There is none."""

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **_: Any) -> Any:
        """All tokens at once, or one after the other."""
        step = 1 if sampling_params.output_kind is RequestOutputKind.DELTA else sampling_params.max_tokens
        for left in range(sampling_params.max_tokens - step, -1, -step):
            finish = None if left else "length"
            choice = CompletionOutput(0, " token" * step, [7] * step, None, None, finish_reason=finish)
            yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [choice], not left)
            await asyncio.sleep(0)


async def _serve() -> None:
    """The engine alone."""
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    engine, names = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(arguments)), itertools.count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = (await reader.read(1 << 16)).partition(b"\r\n\r\n")[2]
        work = json.loads(body or b'{"max_tokens": 1, "messages": [{"content": "a prompt"}]}')
        kind = RequestOutputKind.DELTA if "stream" in work else RequestOutputKind.FINAL_ONLY
        parameters = SamplingParams(max_tokens=work["max_tokens"], ignore_eos=True, output_kind=kind)
        prompt = [*range(2, 2 + len(work["messages"][0]["content"]))]
        async for output in engine.generate(tokens_input(prompt), parameters, str(next(names))):
            writer.write(b"data: {%b}\n" % output.outputs[0].text.encode())
        writer.write(b'"completion_tokens":%d' % work["max_tokens"])
        writer.close()

    await (await asyncio.start_server(answer, arguments.host, arguments.port)).serve_forever()


if __name__ == "__main__":
    what = sys.argv.pop(1)
    if what == "pretended":
        async_llm.AsyncLLM = Pretended
    if what == "bare":
        uvloop.run(_serve())
    else:
        entry.main()
