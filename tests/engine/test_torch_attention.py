"""Attention over block tables in torch agrees with dense attention for all batches, block sizes and model features."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.model.attention.interface import AttentionCall
from inflight.model.attention.torch_attention import TorchAttention
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerShape, allocate
from inflight.model.ragged_batch import RaggedBatch
from scripts.reference.dense_attention import CPU, IMAGE_CASES, Case, Layer, worst_error
from tests.unit.builders import make_plan, make_request

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

DECODES = [(1, 1), (30, 1), (7, 1), (12, 1), (61, 1), (8, 1)]
PROMPTS = [(0, 5), (0, 17), (0, 1), (0, 8)]
CHUNKS = [(4, 3), (9, 14), (16, 2)]
BATCHES = {
    "one decode": [(21, 1)],
    "one token": [(0, 1)],
    "decodes": DECODES,
    "prompts": PROMPTS,
    "chunks": CHUNKS,
    "everything": [*CHUNKS, *DECODES, *PROMPTS],
}
LAYERS = {
    "plain": {},
    "a head each": {"shape": LayerShape(4, 8, 8)},
    "one head for all": {"query_heads": 6, "shape": LayerShape(1, 8, 8)},
    "values narrower": {"shape": LayerShape(4, 12, 6)},
    "values wider": {"shape": LayerShape(2, 8, 20)},
    "window": {"window": 6},
    "window of one": {"window": 1},
    "window over all": {"window": 100},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "windowed sinks": {"sinks": True, "window": 5},
    "windowed softcap": {"softcap": 1.5, "window": 9, "shape": LayerShape(1, 8, 4)},
    "all at once": {"softcap": 1.5, "window": 9, "sinks": True, "shape": LayerShape(2, 16, 4)},
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_agrees_with_dense_attention(batch: str, layer: str, dtype: torch.dtype) -> None:
    assert worst_error(Case(BATCHES[batch], **LAYERS[layer]), dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 64])
def test_attention_does_not_depend_on_the_block_size(block_size: int) -> None:
    for window in (None, 6):
        case = Case(BATCHES["everything"], block_size=block_size, window=window)
        assert worst_error(case, torch.float32) < 1e-5


def test_attention_does_not_depend_on_which_blocks_are_used() -> None:
    for seed in range(5):
        assert worst_error(Case(BATCHES["everything"], seed=seed), torch.float32) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", IMAGE_CASES)
def test_tokens_of_images_see_them_whole(name: str, dtype: torch.dtype) -> None:
    assert worst_error(IMAGE_CASES[name], dtype) < TOLERANCE[dtype]


rows = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 50), st.just(1)),
        st.tuples(st.just(0), st.integers(1, 20)),
        st.tuples(st.integers(1, 30), st.integers(2, 12)),
    ),
    min_size=1,
    max_size=8,
)
cases = st.builds(
    lambda rows, kv_heads, group_size, widths, **others: Case(
        rows, query_heads=kv_heads * group_size, shape=LayerShape(kv_heads, *widths), **others
    ),
    rows=rows,
    kv_heads=st.integers(1, 3),
    group_size=st.integers(1, 3),
    widths=st.tuples(st.sampled_from([4, 8, 12]), st.sampled_from([4, 8, 12])),
    block_size=st.integers(1, 17),
    window=st.one_of(st.none(), st.integers(1, 40)),
    softcap=st.sampled_from([None, 0.5, 3.0]),
    sinks=st.booleans(),
    scaling=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)


@settings(derandomize=True, deadline=None, database=None, max_examples=60)
@given(cases)
def test_attention_agrees_with_dense_attention_in_random_cases(case: Case) -> None:
    assert worst_error(case, torch.float32) < 1e-5


def test_a_step_writes_its_own_slots_and_clears_partial_blocks_and_nothing_else() -> None:
    layer = Layer(Case([(3, 1), (0, 2)], block_size=4), torch.float32)
    layer.paged()
    # The cache has 5 blocks of 4 slots. 4 and 2 slots have tokens. The 2 other slots of the second row's block are 0.
    garbage = (layer.cache.keys == 1000.0).all(dim=-1).all(dim=-1)
    zero = (layer.cache.values == 0).all(dim=-1).all(dim=-1)
    assert (garbage.sum(), zero.sum()) == (5 * 4 - 8, 2)


def test_every_layer_has_its_own_cache_and_window() -> None:
    """The model calls two layers, the first with a window of two tokens, the second without a window."""
    shape = LayerShape(1, 2, 2)
    caches = allocate([shape, shape], 2, 4, torch.float32, CPU)
    request = make_request("a", 4)
    request.blocks = [1]
    attention = TorchAttention(RaggedBatch.on(CPU, BatchArrays.of(make_plan((request, 4)), 4)), caches, [2, None])
    # With keys of zero every visible token has the same weight.
    values = torch.arange(4.0).repeat(2, 1).T.reshape(1, 1, 4, 2)
    nothing = torch.zeros(1, 1, 4, 2)
    call = AttentionCall(torch.nn.Identity(), nothing, nothing, values, 1.0, None, None, None)
    assert attention.attend(call)[0, :, 0, 0].tolist() == pytest.approx([0, 0.5, 1.5, 2.5])
    louder = dataclasses.replace(call, value=10 * values)
    assert attention.attend(louder)[0, :, 0, 0].tolist() == pytest.approx([0, 5, 10, 15])
    assert torch.equal(caches[0].values[1, :, 0, 0], torch.arange(4.0))
    assert torch.equal(caches[1].values[1, :, 0, 0], 10 * torch.arange(4.0))
