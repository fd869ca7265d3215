"""The systems that `make bench` measures. Each loads a model, answers requests and frees all memory."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from load_tests.bench.report import Observed
from load_tests.bench.requests import Incomplete, batch_steps, check_complete, check_length, static_batches, turns
from load_tests.endpoints import ANSWER_SECONDS, grpc_endpoint
from load_tests.generator import closed_loop
from load_tests.prompts import PlannedRequest
from scripts.launch.model_repository import model_parameters
from scripts.launch.served_model import DEVICE, DTYPE, triton_server
from scripts.peers.transformers_server import continuous_batching, load_model, load_tokenizer, static_batch

# Without batching, one of this many requests is enough: the speed is the same for all of them.
ONE_BY_ONE_SHARE = 8

Advance: TypeAlias = Callable[[int], object]
"""Called with the number of requests that have just ended."""


Serve: TypeAlias = Callable[[Sequence[PlannedRequest], Advance], Observed]
"""Answers requests. Raises Incomplete if an answer is missing or does not have the requested length."""


@dataclass(frozen=True)
class System:
    """A system to measure. `load` takes the model's folder and `at_once`, and frees all memory at its exit."""

    name: str
    at_once: int
    load: Callable[[Path, int], AbstractContextManager[Serve]]
    share: int = 1
    """One of this many requests is measured."""

    def part(self, requests: Sequence[PlannedRequest]) -> Sequence[PlannedRequest]:
        """Return the requests with which this system is measured."""
        return requests[: max(1, len(requests) // self.share)]


@contextlib.contextmanager
def transformers_generate(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with `generate` of transformers in batches of `at_once` requests."""
    tokenizer, model = load_tokenizer(folder), load_model(folder)

    def answer(batch: Sequence[PlannedRequest]) -> None:
        prompts = [request.prompt() for request in batch]
        outputs = static_batch(model, tokenizer, prompts, batch_steps(batch))
        check_length(batch_steps(batch), len(outputs[0]))
        tokenizer.batch_decode([row[: request.output_tokens] for row, request in zip(outputs, batch, strict=True)])

    def serve(requests: Sequence[PlannedRequest], advance: Advance) -> Observed:
        started = time.perf_counter()
        batches = static_batches(requests, at_once)
        for batch in batches:
            answer(batch)
            advance(len(batch))
        return Observed(sum(map(batch_steps, batches)), time.perf_counter() - started)

    yield serve


@contextlib.contextmanager
def transformers_continuous(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with the continuous batching of transformers, with at most `at_once` requests in a step."""
    tokenizer = load_tokenizer(folder)
    manager = continuous_batching(load_model(folder), tokenizer, at_once)

    def serve(requests: Sequence[PlannedRequest], advance: Advance) -> Observed:
        wanted = {
            manager.add_request(request.prompt(), max_new_tokens=request.output_tokens): request for request in requests
        }
        while wanted:
            result = manager.get_result(timeout=ANSWER_SECONDS)
            if result is None or result.error:
                raise Incomplete(f"transformers' continuous batching gave no answer: {result and result.error}")
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
    """Serve with this project's engine in this process, with or without its CPU kernels."""
    from inflight import Engine, EngineConfig, SamplingParams

    served = model_parameters()
    config = EngineConfig(
        str(folder),
        dtype=DTYPE,
        device=DEVICE,
        max_num_seqs=at_once,
        enable_kernels=kernels,
        # The same budget as behind Triton, because the token budget determines the speed.
        max_num_batched_tokens=int(served["max_num_batched_tokens"]),
        token_budget=served["token_budget"],
    )
    engine = Engine(config)

    def serve(requests: Sequence[PlannedRequest], advance: Advance) -> Observed:
        before = engine.stats()
        for group in turns(requests):
            params = [SamplingParams(**r.sampling, max_tokens=r.output_tokens, ignore_eos=True) for r in group]
            outputs = engine.generate([request.prompt() for request in group], params)
            for request, output in zip(group, outputs, strict=True):
                check_length(request.output_tokens, len(output.token_ids))
                advance(1)
        after = engine.stats()
        return Observed(after.steps - before.steps, after.step_seconds - before.step_seconds)

    yield serve


@contextlib.contextmanager
def inflight_server(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with a tritonserver and `at_once` clients, which stream."""
    with triton_server(folder, max_num_seqs=str(at_once)) as server:
        yield lambda requests, advance: asyncio.run(_served(server.grpc_url, at_once, requests, advance))


async def _served(url: str, users: int, requests: Sequence[PlannedRequest], advance: Advance) -> Observed:
    async with grpc_endpoint(url) as endpoint:
        run = await closed_loop(endpoint, users, iter(requests), count=len(requests), advance=lambda: advance(1))
    return Observed(first_token_seconds=tuple(check_complete(run).ttft.tolist()))


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
