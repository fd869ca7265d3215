"""Attention over whole sequences in float64, one token and head at a time, and random cases for paged attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from inflight import SamplingParams
from inflight.kv_cache.block_table_array import tables_of
from inflight.model.attention.backend import Attend
from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.torch_attention import TorchAttention
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerCache, LayerShape, allocate
from inflight.model.images.batch_images import BatchImages
from inflight.model.images.features import Features
from inflight.model.ragged_batch import RaggedBatch
from inflight.prompt_images import PromptImages
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan

CPU = torch.device("cpu")
GARBAGE = 1000.0
"""Content of free slots. It is large, so that any trace of it in an output is noticed."""

TWO_HEADS = LayerShape(num_kv_heads=2, key_width=8, value_width=8)


@dataclass(frozen=True)
class Case:
    """A ragged batch and its layer. Each row has a number of cached tokens and a number of new tokens."""

    rows: Sequence[tuple[int, int]]
    query_heads: int = 4
    shape: LayerShape = TWO_HEADS
    block_size: int = 4
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    scaling: float = 0.3
    seed: int = 0
    images: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """By row: the first token of each image, all of whose tokens see it whole, and the token after its last."""


# Rows for the kernels, whose blocks have 16 or more tokens.
EVERYTHING = [(0, 1), (15, 1), (16, 1), (100, 1), (9, 14), (31, 2), (0, 33), (0, 5)]
CASES = {
    "plain": Case(EVERYTHING, block_size=16),
    "single tokens": Case([(3, 1), (70, 1)], block_size=16),
    "prompts": Case([(0, 70), (64, 17)], block_size=16),
    "a head each": Case(EVERYTHING, query_heads=4, shape=LayerShape(4, 16, 16), block_size=16),
    "nine heads, three of keys": Case(EVERYTHING, query_heads=9, shape=LayerShape(3, 24, 24), block_size=16),
    "values narrower": Case(EVERYTHING, shape=LayerShape(2, 48, 20), block_size=16),
    "small blocks": Case(EVERYTHING, block_size=4),
    "odd blocks": Case(EVERYTHING, block_size=24),
    "window": Case(EVERYTHING, window=21, block_size=16),
    "window of one": Case(EVERYTHING, window=1, block_size=16),
    "softcap": Case(EVERYTHING, softcap=2.0, block_size=16),
    "sinks": Case(EVERYTHING, sinks=True, block_size=16),
    "all at once": Case(EVERYTHING, softcap=1.5, window=9, sinks=True, query_heads=6, block_size=16),
    "keys in parts": Case([(600, 1), (1100, 1), (0, 1), (5, 3)], block_size=16, sinks=True),
    "a window over parts": Case([(600, 1), (1100, 1)], block_size=16, window=500),
}
IMAGE_ROWS = [(100, 1), (0, 33), (9, 64), (0, 70), (250, 23), (0, 5)]
IMAGES = {1: [(1, 3), (5, 33)], 2: [(5, 30), (31, 71)], 3: [(20, 60), (60, 69)], 4: [(260, 273)]}
IMAGE_CASES = {
    "images": Case(IMAGE_ROWS, block_size=16, images=IMAGES),
    "images and a window": Case(IMAGE_ROWS, block_size=16, images=IMAGES, window=17),
    "images and all else": Case(IMAGE_ROWS, query_heads=6, block_size=16, images=IMAGES, softcap=1.5, sinks=True),
}


def prompt_images(parts: Sequence[tuple[int, int]]) -> PromptImages:
    """Images without a meaning, see `Case.images`."""
    places = tuple((*part, bytes([index])) for index, part in enumerate(parts))
    rows = np.concatenate([np.arange(*part) for part in parts])
    features = Features(object, one_by_one=False, main=torch.zeros(len(rows), 1))
    return PromptImages(places, rows, features, sees_ahead=True)


def dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    case: Case,
    sinks: torch.Tensor | None,
    images: Sequence[tuple[int, int]] = (),
) -> torch.Tensor:
    """Attention of the last tokens of one sequence, which may have images, see `Case.images`.

    `query` is [new, heads, key width], `keys` and `values` are [tokens, KV heads, width]. The result is [new, heads,
    value width] in float64.
    """
    query, keys, values = query.double(), keys.double(), values.double()
    output = query.new_zeros(*query.shape[:2], values.shape[2])
    group_size = query.shape[1] // keys.shape[1]
    for i in range(len(query)):
        end = len(keys) - len(query) + i + 1
        start = 0 if case.window is None else max(0, end - case.window)
        end = max([end, *(after for begin, after in images if begin < end <= after)])
        for head in range(query.shape[1]):
            scores = keys[start:end, head // group_size] @ query[i, head] * case.scaling
            if case.softcap is not None:
                scores = torch.tanh(scores / case.softcap) * case.softcap
            weights = scores.exp()
            total = weights.sum() + (0 if sinks is None else sinks[head].double().exp())
            output[i, head] = weights @ values[start:end, head // group_size] / total
    return output


class Layer:
    """A case with random numbers, and its attention computed both paged and densely."""

    def __init__(
        self, case: Case, dtype: torch.dtype, attention: Attend = TorchAttention, device: torch.device = CPU
    ) -> None:
        self._case, self._dtype, self._attention, self._device = case, dtype, attention, device
        self._random = torch.Generator().manual_seed(case.seed)
        shape = case.shape
        lengths = [past + new for past, new in case.rows]
        self._query = [self._normal(new, case.query_heads, shape.key_width) for _, new in case.rows]
        self._keys = [self._normal(length, shape.num_kv_heads, shape.key_width) for length in lengths]
        self._values = [self._normal(length, shape.num_kv_heads, shape.value_width) for length in lengths]
        self._sinks = self._normal(case.query_heads) if case.sinks else None
        self._requests, num_blocks = self._requests_with_blocks(lengths)
        (self.cache,) = allocate([shape], num_blocks, case.block_size, dtype, device)

    def _normal(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._random).to(self._device, self._dtype)

    def _requests_with_blocks(self, lengths: list[int]) -> tuple[list[Request], int]:
        """Return requests with scattered blocks, and the total number of blocks, some of which belong to no request."""
        counts = [-(-length // self._case.block_size) for length in lengths]
        spread = torch.randperm(sum(counts) + 3, generator=self._random).tolist()
        requests = []
        for row, ((past, _), length, count) in enumerate(zip(self._case.rows, lengths, counts, strict=True)):
            request = Request(str(row), list(range(length)), SamplingParams(), max_tokens=1, seed=0)
            request.num_computed = past
            request.blocks = [spread.pop() for _ in range(count)]
            if row in self._case.images:
                request.images = prompt_images(self._case.images[row])
            requests.append(request)
        return requests, sum(counts) + 3

    def dense(self) -> list[torch.Tensor]:
        """The expected output of each row."""
        return [
            dense(query, keys, values, self._case, self._sinks, self._case.images.get(row, ()))
            for row, (query, keys, values) in enumerate(zip(self._query, self._keys, self._values, strict=True))
        ]

    def paged(self) -> list[torch.Tensor]:
        """The output of each row, computed with block tables over a cache that holds the earlier tokens."""
        size = self._case.block_size
        for pages, sequences in ((self.cache.keys, self._keys), (self.cache.values, self._values)):
            pages.fill_(GARBAGE)
            for request, sequence in zip(self._requests, sequences, strict=True):
                for position in range(request.num_computed):
                    pages[request.blocks[position // size], position % size] = sequence[position]
        plan = self._plan()
        arrays = BatchArrays.of(plan, size)
        batch = RaggedBatch.on(self._device, arrays, images=BatchImages.of(plan.scheduled, arrays))
        order = arrays.order.tolist()
        output = self._attend(batch, order, self.cache)
        borders = zip(batch.query_starts, batch.query_starts[1:], strict=False)
        found = {row: output[first:last] for row, (first, last) in zip(order, borders, strict=True)}
        return [found[row] for row in range(len(order))]

    def _plan(self) -> StepPlan:
        rows = zip(self._requests, self._case.rows, strict=True)
        scheduled = tuple(ScheduledRequest.next_of(request, new) for request, (_, new) in rows)
        return StepPlan(scheduled, tables_of([request.blocks for request in self._requests]))

    def _attend(self, batch: RaggedBatch, order: list[int], cache: LayerCache) -> torch.Tensor:
        query, keys, values = (
            torch.cat([part[row][-self._case.rows[row][1] :] for row in order]).transpose(0, 1)[None]
            for part in (self._query, self._keys, self._values)
        )
        call = AttentionCall(
            torch.nn.Identity(),
            query,
            keys,
            values,
            scaling=self._case.scaling,
            window=self._case.window,
            softcap=self._case.softcap,
            sinks=self._sinks,
        )
        return self._attention(batch, [cache], [self._case.window], [bool(self._case.images)]).attend(call)[0]


def worst_error(
    case: Case, dtype: torch.dtype, attention: Attend = TorchAttention, device: torch.device = CPU
) -> float:
    """The largest difference between paged and dense output, divided by the dense output's size where that exceeds
    1."""
    layer = Layer(case, dtype, attention, device)
    worst = 0.0
    for paged, expected in zip(layer.paged(), layer.dense(), strict=True):
        assert paged.shape == expected.shape
        assert paged.dtype == dtype
        error = (paged.double() - expected).abs() / expected.abs().clamp(min=1)
        worst = max(worst, float(error.max()))
        assert not math.isnan(worst)
    return worst
