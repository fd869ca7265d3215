"""The C++ kernel for attention agrees with float64 for every layer and batch that it supports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from inflight.model.attention.backend import CPU_KERNELS
from inflight.model.attention.interface import AttentionCall
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerShape
from inflight.model.cpu import kernel_attention
from inflight.model.images.batch_images import BatchImages
from inflight.model.ragged_batch import RaggedBatch
from scripts.reference.dense_attention import CPU, GARBAGE, IMAGE_CASES, Case, dense, prompt_images
from tests.engine.random_numbers import error, random
from tests.unit.builders import make_plan, make_request

pytestmark = pytest.mark.usefixtures("cpu_kernels")

# Roundings of outputs and probabilities.
ATTENTION_ERROR = 6e-3

EVERYTHING = [(0, 1), (15, 1), (16, 1), (100, 1), (9, 14), (31, 2), (0, 33), (0, 5)]
# Contexts of more than 256 tokens, which is the length of a part in the kernel.
LONG = [(600, 1), (250, 20), (0, 300), (511, 2)]
LAYERS = {
    "plain": {},
    "a head each": {"query_heads": 4, "shape": LayerShape(4, 16, 16)},
    "nine heads, three of keys": {"query_heads": 9, "shape": LayerShape(3, 64, 64)},
    "ten heads for one": {"query_heads": 10, "shape": LayerShape(1, 80, 80)},
    "values narrower": {"shape": LayerShape(2, 48, 32)},
    "values wider": {"shape": LayerShape(2, 32, 112)},
    "wide": {"shape": LayerShape(2, 256, 256)},
    "larger blocks": {"block_size": 48},
    "window": {"window": 21},
    "window of one": {"window": 1},
    "long window": {"window": 270},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all at once": {"softcap": 1.5, "window": 9, "sinks": True, "query_heads": 6},
}


class Sequences:
    """A random sequence for each row of a case, and a cache that does not have their keys and values yet."""

    def __init__(self, case: Case) -> None:
        self.case, shape, size = case, case.shape, case.block_size
        assert kernel_attention.takes([shape], size)
        lengths = [past + new for past, new in case.rows]
        self.query = [random(length, case.query_heads, shape.key_width) for length in lengths]
        self.keys = [random(length + 1, shape.num_kv_heads, shape.key_width)[1:] for length in lengths]
        self.values = [random(length + 2, shape.num_kv_heads, shape.value_width)[2:] for length in lengths]
        self.sinks = random(case.query_heads) if case.sinks else None
        num_blocks = sum(-(-length // size) for length in lengths)
        (self._cache,) = kernel_attention.allocate([shape], num_blocks, size, torch.bfloat16, CPU)
        self._cache.keys.fill_(GARBAGE)
        self._cache.values.fill_(float("nan"))  # As if earlier requests had left NaN.
        free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self._requests = []
        for row, length in enumerate(lengths):
            self._requests.append(make_request(str(row), length))
            self._requests[-1].blocks = [free.pop() for _ in range(-(-length // size))]
        self.place(case.images)

    def place(self, images: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """From now on the sequences have these images, see `Case.images`."""
        self.has_images = bool(images)
        for row, parts in images.items():
            self._requests[row].images = prompt_images(parts)

    def attend(self, counts: Sequence[int]) -> dict[int, torch.Tensor]:
        """Compute attention for the next `counts[i]` tokens of each sequence i. Return the outputs by sequence.

        A sequence with a count of 0 has no row in the batch.
        """
        scheduled = [(r, count) for r, count in zip(self._requests, counts, strict=True) if count]
        plan = make_plan(*scheduled)
        arrays = BatchArrays.of(plan, self.case.block_size)
        images = BatchImages.of(plan.scheduled, arrays)
        batch = RaggedBatch.on(CPU, arrays, images=images)
        rows = [scheduled[index][0] for index in arrays.order]
        flat = [
            torch.cat([part[int(r.request_id)][r.num_computed :][: counts[int(r.request_id)]] for r in rows])
            for part in (self.query, self.keys, self.values)
        ]
        call = AttentionCall(
            nn.Identity(),
            *(part.transpose(0, 1)[None] for part in flat),
            scaling=self.case.scaling,
            window=self.case.window,
            softcap=self.case.softcap,
            sinks=self.sinks,
        )
        attention = CPU_KERNELS.attend(batch, [self._cache], [self.case.window], [self.has_images])
        output = attention.attend(call)[0]
        borders = zip(rows, batch.query_starts, batch.query_starts[1:], strict=False)
        found = {int(request.request_id): output[first:last] for request, first, last in borders}
        for request, count in zip(self._requests, counts, strict=True):
            request.num_computed += count
        return found


@pytest.mark.parametrize("rows", [EVERYTHING, LONG], ids=["short", "long"])
@pytest.mark.parametrize("layer", LAYERS)
def test_attention_agrees_with_dense_attention(layer: str, rows: Sequence[tuple[int, int]]) -> None:
    case = Case(rows, **{"shape": LayerShape(2, 32, 32), "block_size": 16, **LAYERS[layer]})
    sequences = Sequences(case)
    sequences.attend([past for past, _ in rows])
    found = sequences.attend([new for _, new in rows])
    for row, (past, _) in enumerate(rows):
        query, keys, values = sequences.query[row], sequences.keys[row], sequences.values[row]
        assert error(found[row], dense(query[past:], keys, values, case, sequences.sinks)) < ATTENTION_ERROR


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_tokens_of_images_see_them_whole(name: str) -> None:
    case = replace(IMAGE_CASES[name], shape=LayerShape(2, 32, 32))
    sequences = Sequences(replace(case, images={}))
    sequences.attend([past for past, _ in case.rows])
    sequences.place(case.images)
    found = sequences.attend([new for _, new in case.rows])
    for row, (past, _) in enumerate(case.rows):
        query, keys, values = sequences.query[row], sequences.keys[row], sequences.values[row]
        wanted = dense(query[past:], keys, values, case, sequences.sinks, case.images.get(row, ()))
        assert error(found[row], wanted) < ATTENTION_ERROR


def test_the_attention_of_an_image_does_not_depend_on_chunks_or_other_rows() -> None:
    images = {0: [(20, 60), (60, 69), (250, 281)]}
    case = Case([(0, 300), (0, 9)], shape=LayerShape(2, 32, 32), block_size=16, window=37, images=images)
    whole = Sequences(case).attend([300, 9])
    chunked = Sequences(case)
    found = [chunked.attend(chunk) for chunk in [(20, 9), (49, 0), (180, 0), (1, 0), (37, 0), (13, 0)]]
    assert torch.equal(torch.cat([outputs[0] for outputs in found]), whole[0])
    assert torch.equal(found[0][1], whole[1])


@pytest.mark.parametrize("layer", LAYERS)
def test_the_attention_of_a_token_does_not_depend_on_chunks_or_other_rows(layer: str) -> None:
    case = Case([(0, 300), (0, 9)], **{"shape": LayerShape(2, 32, 32), "block_size": 16, **LAYERS[layer]})
    whole = Sequences(case).attend([300, 9])
    chunked, chunks = Sequences(case), [(7, 9), (242, 0), (9, 0), (1, 0), (17, 0), (23, 0), (1, 0)]
    found = [chunked.attend(chunk) for chunk in chunks]
    assert torch.equal(torch.cat([outputs[0] for outputs in found]), whole[0])
    assert torch.equal(found[0][1], whole[1])
