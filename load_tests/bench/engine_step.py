"""A step of the engine without scheduler and server, for measurements.

A step prepares a batch, runs the model and samples. A batch is either a number of decodes, which are rows of one new
token after some cached tokens, or one whole prompt. Times are medians over steps, and compared steps alternate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import torch

from inflight import SamplingParams
from inflight.kv_cache.block_table_array import tables_of
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cpu.packed_linear import PackedLinear, PackedLinears
from inflight.model.forward import ForwardPass
from inflight.model.loading.loader import LoadedModel
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.sampling.sampler import sample
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan

DECODES = (1, 8, 32, 64)
PROMPTS = (32, 128, 512)
CONTEXT, SPREAD = 192, 64
"""Cached tokens of the row that has most of them, and how many the others have less at most."""
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = {
    "temperature 1": SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
    "top_p 0.95": SamplingParams(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0),
}
BLOCK_SIZE = 16
SETTINGS: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", "block_size": BLOCK_SIZE}
ROUNDS = 15
WARMUP = 2
"""Number of warm-up steps, which are not counted: the first steps touch new memory."""

Step: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """A batch to measure: rows of new tokens after cached tokens."""

    name: str
    rows: Sequence[tuple[int, int]]
    """Number of cached and of new tokens in each row."""
    params: SamplingParams = GREEDY

    @property
    def num_tokens(self) -> int:
        return sum(new for _, new in self.rows)


def works(context: int = CONTEXT) -> list[Work]:
    """All greedy batches. Decodes have up to `context` cached tokens."""
    return [decodes(n, context) for n in DECODES] + [Work(f"a prompt of {n}", [(0, n)]) for n in PROMPTS]


def sampled_works(context: int = CONTEXT) -> list[Work]:
    """The largest batch of decodes with sampling."""
    work = decodes(DECODES[-1], context)
    return [replace(work, name=f"{work.name}, {name}", params=params) for name, params in SAMPLED.items()]


def decodes(rows: int, context: int = CONTEXT) -> Work:
    """A batch of `rows` decodes with up to `context` cached tokens."""
    first = context - SPREAD
    return Work(f"{rows} decodes", [(first + SPREAD * i // rows, 1) for i in range(rows)])


def plan_of(work: Work) -> StepPlan:
    """The step plan of a batch. Every row has its own blocks."""
    free = iter(range(num_blocks(work)))
    shares, tables = [], []
    for number, (cached, new) in enumerate(work.rows):
        tokens = [(31 * number + 7 * position) % 30_000 + 100 for position in range(cached + new)]
        request = Request(str(number), tokens, work.params, max_tokens=1, seed=number)
        request.num_computed = cached
        tables.append([next(free) for _ in range(-(-(cached + new) // BLOCK_SIZE))])
        shares.append(ScheduledRequest.next_of(request, new))
    return StepPlan(tuple(shares), tables_of(tables))


def num_blocks(work: Work) -> int:
    """Number of blocks that a batch needs."""
    return sum(-(-(cached + new) // BLOCK_SIZE) for cached, new in work.rows)


def step_of(model: LoadedModel, forward: ForwardPass, work: Work) -> Step:
    """The engine's work in a step, over its own KV cache."""
    plan = plan_of(work)
    shapes = [layer.shape for layer in model.layers]
    caches = model.backend.allocate(shapes, num_blocks(work), BLOCK_SIZE, model.dtype, model.device)

    def step() -> None:
        with torch.inference_mode():
            batch = RaggedBatch.on(model.device, BatchArrays.of(plan, BLOCK_SIZE))
            sample(forward(batch, caches, batch.logit_rows).logits, SamplingBatch.of(plan.sampling))

    return step


def products_of(model: LoadedModel, work: Work) -> Step:
    """Only the matrix products of a step. The head computes the sampled rows."""
    module: Any = model.module
    head = module.get_output_embeddings().group
    calls: list[Step] = []
    for group in packed_linears(model):
        x = torch.randn(len(work.rows) if group is head else work.num_tokens, group.in_features).bfloat16()
        calls.append(partial(group.product, x))

    def products() -> None:
        for call in calls:
            call()

    return products


def packed_linears(model: LoadedModel) -> list[PackedLinears]:
    """The packed weights of the model's linear layers, each once."""
    found = {id(layer.group): layer.group for layer in model.module.modules() if isinstance(layer, PackedLinear)}
    return list(found.values())


def alternating(steps: Sequence[Step]) -> list[float]:
    """Median milliseconds of each step. The steps alternate."""
    return alternating_medians([partial(seconds_of, step) for step in steps])


def seconds_of(step: Step) -> float:
    """Duration of a step."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def alternating_medians(timed: Sequence[Callable[[], float]]) -> list[float]:
    """Median milliseconds of the functions, which return seconds and are called alternately."""
    rounds = [[each() for each in timed] for _ in range(WARMUP + ROUNDS)]
    return [1000 * median(times) for times in zip(*rounds[WARMUP:], strict=True)]
