"""Other servers that answer as ours does, so that one client can load both."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import aiohttp

from scripts.launch.server_process import ServerProcess, fill_ports

MODEL = "model"
"""What they call the model that they serve."""
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
