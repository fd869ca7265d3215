"""The systems that `make bench` measures: each loads a model, answers requests and frees all that it took."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from inflight_client import AsyncClient, Timeouts
from load_tests.bench.report import Observed
from load_tests.bench.workload import batch_steps, check_length, static_batches
from load_tests.workload import Task
from scripts.launch.model_repository import model_parameters
from scripts.launch.served_model import DEVICE, DTYPE, triton_server
from scripts.peers.transformers_server import continuous_batching, load_model, load_tokenizer, static_batch

# Of so many requests one is enough to know the speed of one by one, which is the same for all.
ONE_BY_ONE_SHARE = 8
ANSWER_SECONDS = 300.0

Advance: TypeAlias = Callable[[int], object]
"""Called with the number of requests that have just ended."""


Serve: TypeAlias = Callable[[Sequence[Task], Advance], Observed]
"""Answers tasks; raises RuntimeError where an answer is not as long as it should be."""


@dataclass(frozen=True)
class System:
    """Something that answers requests; `load` takes the model's folder and `at_once`, and frees all at its exit."""

    name: str
    at_once: int
    load: Callable[[Path, int], AbstractContextManager[Serve]]
    share: int = 1
    """One of this many requests is measured."""

    def part(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the requests that this system is measured on."""
        return tasks[: max(1, len(tasks) // self.share)]


@contextlib.contextmanager
def transformers_generate(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with `generate` of transformers, `at_once` requests to a batch."""
    tokenizer, model = load_tokenizer(folder), load_model(folder)

    def answer(batch: Sequence[Task]) -> None:
        prompts = tokenizer([task.prompt for task in batch])["input_ids"]
        outputs = static_batch(model, tokenizer, prompts, batch_steps(batch))
        check_length(batch_steps(batch), len(outputs[0]))
        tokenizer.batch_decode([row[: task.output_tokens] for row, task in zip(outputs, batch, strict=True)])

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        started = time.perf_counter()
        batches = static_batches(tasks, at_once)
        for batch in batches:
            answer(batch)
            advance(len(batch))
        return Observed(sum(map(batch_steps, batches)), time.perf_counter() - started)

    yield serve


@contextlib.contextmanager
def transformers_continuous(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with the continuous batching of transformers, `at_once` requests at most in a step."""
    tokenizer = load_tokenizer(folder)
    manager = continuous_batching(load_model(folder), tokenizer, at_once)

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        wanted = {
            manager.add_request(tokenizer(task.prompt)["input_ids"], max_new_tokens=task.output_tokens): task
            for task in tasks
        }
        while wanted:
            result = manager.get_result(timeout=ANSWER_SECONDS)
            if result is None or result.error:
                raise RuntimeError(f"transformers' continuous batching gave no answer: {result and result.error}")
            check_length(wanted.pop(result.request_id).output_tokens, len(result.generated_tokens))
            tokenizer.decode(result.generated_tokens)
            advance(1)
        return Observed()

    manager.start()
    try:
        yield serve
    finally:
        manager.stop(block=True)


@contextlib.contextmanager
def inflight_engine(folder: Path, at_once: int, *, kernels: bool = True) -> Iterator[Serve]:
    """Serve with this project's engine in this process, with its CPU kernels where there are any, or without."""
    from inflight import Engine, EngineConfig, SamplingParams

    served = model_parameters()
    config = EngineConfig(
        str(folder),
        dtype=DTYPE,
        device=DEVICE,
        max_num_seqs=at_once,
        enable_kernels=kernels,
        # As behind Triton: what a step may take decides how fast it is.
        max_num_batched_tokens=int(served["max_num_batched_tokens"]),
        token_budget=served["token_budget"],
    )
    engine = Engine(config)

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        before = engine.stats()
        params = [SamplingParams(max_tokens=t.output_tokens, ignore_eos=True, temperature=0.0) for t in tasks]
        for task, output in zip(tasks, engine.generate([task.prompt for task in tasks], params), strict=True):
            check_length(task.output_tokens, len(output.token_ids))
            advance(1)
        after = engine.stats()
        return Observed(after.steps - before.steps, after.step_seconds - before.step_seconds)

    yield serve


@contextlib.contextmanager
def inflight_server(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with a tritonserver and `at_once` clients of it, which stream."""
    with triton_server(folder, max_num_seqs=str(at_once)) as server:
        yield lambda tasks, advance: asyncio.run(_closed_loop(server.grpc_url, at_once, tasks, advance))


async def _closed_loop(url: str, clients: int, tasks: Sequence[Task], advance: Advance) -> Observed:
    first_tokens: list[float] = []
    waiting = iter(tasks)

    async def user(client: AsyncClient) -> None:
        for task in waiting:
            first_tokens.append(await _time_to_first_token(client, task))
            advance(1)

    async with AsyncClient(url, timeouts=Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)) as client:
        await asyncio.gather(*(user(client) for _ in range(clients)))
    return Observed(first_token_seconds=tuple(first_tokens))


async def _time_to_first_token(client: AsyncClient, task: Task) -> float:
    """Read an answer to its end and return when its first text came."""
    sent = time.perf_counter()
    async with client.stream(task.prompt, max_tokens=task.output_tokens, ignore_eos=True, temperature=0.0) as stream:
        await anext(stream)
        first = time.perf_counter() - sent
        answer = await stream.completion()
    check_length(task.output_tokens, answer.usage.completion_tokens)
    return first


SYSTEMS = (
    System("transformers `generate`", 1, transformers_generate, share=ONE_BY_ONE_SHARE),
    System("transformers `generate`, static batches", 8, transformers_generate),
    System("transformers `generate`, static batches", 32, transformers_generate),
    System("transformers, continuous batching", 32, transformers_continuous),
    System("Inflight, in process, portable", 32, partial(inflight_engine, kernels=False)),
    System("Inflight, in process", 1, inflight_engine, share=ONE_BY_ONE_SHARE),
    System("Inflight, in process", 8, inflight_engine),
    System("Inflight, in process", 32, inflight_engine),
    System("Inflight, in process", 64, inflight_engine),
    System("Inflight behind Triton, streamed", 1, inflight_server, share=ONE_BY_ONE_SHARE),
    System("Inflight behind Triton, streamed", 8, inflight_server),
    System("Inflight behind Triton, streamed", 32, inflight_server),
    System("Inflight behind Triton, streamed", 64, inflight_server),
)
