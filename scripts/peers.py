"""The servers that `make bench-peers` compares with: vLLM and llama.cpp, installed by whoever runs it."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import aiohttp

from scripts.server_process import ADDRESS, ServerProcess, fill_ports

MODEL = "model"
CONTEXT = 2048
# Prompts and answers of the benchmark stay below it.
CONTEXT_OF_USER = 512
_KV_CACHE_GIB = 2
_ANSWER_SECONDS = 300.0


def check_whole(server: str, finish_reason: str | None) -> None:
    """Raise RuntimeError unless an answer has all the tokens that were asked for: only then it ends for its length."""
    if finish_reason != "length":
        raise RuntimeError(f"an answer of {server} ended with {finish_reason!r} before its last token")


class Peer(ServerProcess):
    """A server that speaks OpenAI's protocol on its HTTP port."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        (port,) = fill_ports(None)
        super().__init__(port, drain_seconds=5)
        self.name = name
        self._command = [*command, "--port", str(port)]
        self._environment = environment

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        return self._command, self._environment

    def wait_ready(self, timeout: float) -> None:
        """Return when the server is ready; raises as `wait_for`."""
        self.wait_for(["/health"], timeout)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Callable[[str, int], AsyncIterator[str]]]:
        """A function that streams greedy answers to prompts, of so many tokens, as no end-of-sequence token ends them.

        It raises RuntimeError where the server refuses.
        """
        timeout = aiohttp.ClientTimeout(_ANSWER_SECONDS)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True)
        ) as session:
            yield partial(self._stream, session)

    async def _stream(self, session: aiohttp.ClientSession, prompt: str, output_tokens: int) -> AsyncIterator[str]:
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        async with session.post(f"http://{self.http_url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{self.name} answered {response.status}: {(await response.text())[:500]}")
            finish_reason = None
            async for line in response.content:
                if line.startswith(b"data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    finish_reason = choice["finish_reason"] or finish_reason
                    yield choice["text"]
        check_whole(self.name, finish_reason)


def vllm(python: Path, folder: Path, users: int) -> Peer:
    """Return vLLM's server, as its documentation sets it up for a CPU; `python` is that of its environment."""
    command = [
        # Not its `vllm` command, which fails where the CPU's package is installed.
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}"),
        *(f"--served-model-name={MODEL}", "--dtype=bfloat16"),
        *(f"--host={ADDRESS}", f"--max-model-len={CONTEXT}", f"--max-num-seqs={users}"),
        *("--disable-uvicorn-access-log", "--no-enable-log-requests"),
    ]
    # Its own Python and tools first, and none of this project's.
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Peer("vLLM", command, environment)


def llama_cpp(program: Path, gguf: Path, users: int) -> Peer:
    """Return llama.cpp's server with a place, and the room that its requests need, for each user."""
    threads = len(os.sched_getaffinity(0))
    command = [
        *(str(program), "--model", str(gguf), "--host", ADDRESS, "--parallel", str(users)),
        *("--ctx-size", str(CONTEXT_OF_USER * users), "--threads", str(threads)),
        *("--cache-type-k", "bf16", "--cache-type-v", "bf16", "--flash-attn", "on", "--no-webui", "--log-disable"),
    ]
    return Peer("llama.cpp", command, dict(os.environ))
