"""transformers as a server: OpenAI's /v1/completions with its static or its continuous batching, for comparisons.

    python -m scripts.peers.transformers_server --model FOLDER --batching continuous --users 32 --port 9001

Static batching: `generate` takes the waiting requests, at most as many as there are users, pads them left and runs
until the longest output is complete. No client gets a token before that, and requests that arrive meanwhile wait.
Continuous batching: transformers' own manager, which streams. Both compute in bfloat16, or in float32 if torch has no
fast bfloat16 matrix products on this CPU, with torch's default number of threads. Prompts are text or token ids.
Outputs have exactly the requested length. Requests with another temperature or top_p are computed one group after the
other, as both kinds of batching have one sampling for all.
"""

import argparse
import asyncio
import json
import sys
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from scripts.launch.server_process import ADDRESS
from scripts.peers.dtype import best_dtype
from scripts.peers.peer import CONTEXT

STATIC, CONTINUOUS = "static", "continuous"
# Token budget of the manager's steps, the same as ours.
CONTINUOUS_TOKENS = 512
PAGE_TOKENS = 256
PAGES_OF_USER = CONTEXT // PAGE_TOKENS


class Sampling(NamedTuple):
    """How tokens are chosen. A temperature of 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def generation(self) -> dict[str, Any]:
        """The same as fields of transformers' GenerationConfig, whose default for top_k is 50."""
        if not self.temperature:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0}


GREEDY = Sampling()


def load_model(folder: Path) -> Any:
    """Return the transformers model in a folder."""
    # Imported here so that `--help` needs no torch.
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=best_dtype(), attn_implementation="sdpa")
    # Without an end-of-sequence token no output ends early. `min_new_tokens` would mask the token at every step, which
    # takes time.
    model.generation_config.eos_token_id = None
    return model


def load_tokenizer(folder: Path) -> Any:
    """Return the transformers tokenizer in a folder. It pads left."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, padding_side="left")


def static_batch(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], steps: int, sampling: Sampling = GREEDY
) -> list[list[int]]:
    """Return `steps` tokens for each prompt."""
    import torch

    inputs = tokenizer.pad({"input_ids": [list(prompt) for prompt in prompts]}, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(
            **inputs, **sampling.generation, max_new_tokens=steps, pad_token_id=tokenizer.pad_token_id
        )
    output: list[list[int]] = tokens[:, inputs["input_ids"].shape[1] :].tolist()
    return output


def continuous_batching(model: Any, tokenizer: Any, users: int, sampling: Sampling = GREEDY) -> Any:
    """Return the manager of transformers' continuous batching for `users` concurrent requests. It is not started
    yet."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = ContinuousBatchingConfig(
        max_requests_per_batch=users,
        max_batch_tokens=CONTINUOUS_TOKENS,
        page_size=PAGE_TOKENS,
        # By default the manager allocates most of the memory and touches all of it.
        num_blocks=users * PAGES_OF_USER,
    )
    generation = GenerationConfig(**sampling.generation, eos_token_id=-1, pad_token_id=tokenizer.pad_token_id)  # type: ignore[no-untyped-call]
    return model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)


class TransformersBatching(ABC):
    """One of transformers' two kinds of batching."""

    def __init__(self, model: Any, tokenizer: Any, users: int) -> None:
        self._model, self._tokenizer, self._users = model, tokenizer, users

    @abstractmethod
    async def start(self) -> None:
        """Start serving."""

    @abstractmethod
    def answer(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> AsyncIterator[list[int]]:
        """Yield all tokens so far whenever there are new ones. Raises RuntimeError if there is no answer."""


class _Waiting(NamedTuple):
    prompt: Sequence[int]
    max_tokens: int
    answer: asyncio.Future[list[int]]


class TransformersStatic(TransformersBatching):
    """`generate` over the waiting requests."""

    async def start(self) -> None:
        self._waiting: asyncio.Queue[tuple[Sampling, _Waiting]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def answer(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> AsyncIterator[list[int]]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((sampling, _Waiting(prompt, max_tokens, future)))
        yield await future

    async def _run(self) -> None:
        while True:
            taken = [await self._waiting.get()]
            while len(taken) < self._users and not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            groups = defaultdict(list)
            for sampling, waiting in taken:
                groups[sampling].append(waiting)
            for sampling, group in groups.items():
                await self._answer(group, sampling)

    async def _answer(self, batch: Sequence[_Waiting], sampling: Sampling) -> None:
        prompts, steps = [each.prompt for each in batch], max(each.max_tokens for each in batch)
        try:
            outputs = await asyncio.to_thread(static_batch, self._model, self._tokenizer, prompts, steps, sampling)
        except RuntimeError as error:
            for each in batch:
                if not each.answer.cancelled():
                    each.answer.set_exception(error)
            return
        for each, output in zip(batch, outputs, strict=True):
            if not each.answer.cancelled():
                each.answer.set_result(output[: each.max_tokens])


class TransformersContinuous(TransformersBatching):
    """transformers' own manager. It has one sampling for all requests, so that another one takes another manager."""

    async def start(self) -> None:
        self._changing = asyncio.Lock()
        self._sampling = GREEDY
        self._start()

    def _start(self) -> None:
        self._manager = continuous_batching(self._model, self._tokenizer, self._users, self._sampling)
        self._manager.start()

    async def answer(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> AsyncIterator[list[int]]:
        results: asyncio.Queue[Any] = asyncio.Queue()
        name = uuid.uuid4().hex
        async with self._changing:
            if sampling != self._sampling:
                # This waits until all running requests have ended.
                await asyncio.to_thread(self._manager.stop, block=True)
                self._sampling = sampling
                await asyncio.to_thread(self._start)
            self._manager.register_result_handler(name, results.put_nowait)
            # The call blocks if very many requests wait.
            await asyncio.to_thread(
                self._manager.add_request, list(prompt), request_id=name, max_new_tokens=max_tokens, streaming=True
            )
        while True:
            result = await results.get()
            if result.error is not None:
                raise RuntimeError(f"transformers' continuous batching gave no answer: {result.error}")
            yield list(result.generated_tokens)
            if result.is_finished():
                return


BATCHINGS: dict[str, type[TransformersBatching]] = {STATIC: TransformersStatic, CONTINUOUS: TransformersContinuous}


def application(batching: TransformersBatching, tokenizer: Any) -> web.Application:
    """The server's routes."""

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        seen = 0
        sampling = Sampling(body["temperature"], body["top_p"])
        async for tokens in batching.answer(ids, body["max_tokens"], sampling):
            text = tokenizer.decode(tokens[seen:])
            seen = len(tokens)
            choice = {"index": 0, "text": text, "finish_reason": "length" if seen == body["max_tokens"] else None}
            event = {"choices": [choice], "usage": {"completion_tokens": seen}}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def start(app: web.Application) -> None:
        await batching.start()

    app = web.Application()
    app.add_routes([web.get("/health", health), web.post("/v1/completions", completions)])
    app.on_startup.append(start)
    return app


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--batching", choices=sorted(BATCHINGS), required=True)
    parser.add_argument("--users", type=int, required=True, help="number of concurrent requests")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.model)
    batching = BATCHINGS[options.batching](load_model(options.model), tokenizer, options.users)
    web.run_app(application(batching, tokenizer), host=ADDRESS, port=options.port, print=None, shutdown_timeout=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
