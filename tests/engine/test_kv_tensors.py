"""The tensors of the KV cache have the shapes of the layers, are zero, and take no memory until they are written."""

import os
from pathlib import Path

import pytest
import torch

from inflight.kv_cache.host_pool import HostPool
from inflight.model.cache.host_cache import HostCache
from inflight.model.cache.kv_tensors import LayerShape, allocate, bytes_per_token, prefault

CPU = torch.device("cpu")
STATM = Path("/proc/self/statm")
SHAPES = [LayerShape(2, 8, 8), LayerShape(4, 12, 6)]


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_layer_gets_tensors_of_its_own_shape(dtype: torch.dtype) -> None:
    first, second = allocate(SHAPES, 5, 16, dtype, CPU)
    assert first.keys.shape == first.values.shape == (5, 16, 2, 8)
    assert second.keys.shape == (5, 16, 4, 12)
    assert second.values.shape == (5, 16, 4, 6)
    assert {tensor.dtype for layer in (first, second) for tensor in (layer.keys, layer.values)} == {dtype}


def test_a_new_cache_is_all_zero() -> None:
    for layer in allocate(SHAPES, 50, 16, torch.float32, CPU):
        assert not layer.keys.any()
        assert not layer.values.any()


def test_bytes_per_token_is_the_size_of_the_tensors_divided_by_their_slots() -> None:
    layers = allocate(SHAPES, 10, 16, torch.bfloat16, CPU)
    taken = sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))
    assert taken == 160 * bytes_per_token(SHAPES, torch.bfloat16)


@pytest.mark.skipif(not STATM.exists(), reason="only Linux has /proc/self/statm")
def test_memory_is_resident_only_once_it_is_written() -> None:
    before = resident_bytes()
    (layer,) = allocate([LayerShape(8, 128, 128)], 4096, 16, torch.float32, CPU)
    assert layer.keys.nbytes + layer.values.nbytes == 512 * 2**20
    assert resident_bytes() - before < 32 * 2**20
    layer.keys[:1024] = 1.0
    assert resident_bytes() - before > 60 * 2**20


@pytest.mark.skipif(not STATM.exists(), reason="only Linux has /proc/self/statm")
@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_prefault_stops_when_its_time_is_over(seconds: float) -> None:
    layers = allocate([LayerShape(8, 128, 128)] * 2, 1024, 16, torch.float32, CPU)
    total = sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))
    before = resident_bytes()
    prefaulted = prefault(layers, seconds)
    assert prefaulted == 1.0 if seconds else 0.0 < prefaulted < 0.5
    assert resident_bytes() - before == pytest.approx(prefaulted * total, abs=16 * 2**20)
    assert not any(tensor.any() for layer in layers for tensor in (layer.keys, layer.values))


@pytest.mark.skipif(not STATM.exists(), reason="only Linux has /proc/self/statm")
def test_host_memory_is_prefaulted_in_the_order_in_which_its_blocks_are_taken() -> None:
    layers = allocate([LayerShape(8, 128, 128)] * 2, 1, 16, torch.float32, CPU)
    host, pool = HostCache(layers, 1024), HostPool(1024)
    before = resident_bytes()
    prefaulted = host.prefault(0.0)
    assert 0.0 < prefaulted < 0.5
    first = resident_bytes()
    assert first - before > 4 * 2**20
    blocks = pool.allocate(int(prefaulted * 1024))
    assert blocks is not None
    host.copy([(0, block) for block in blocks], (), ())
    assert resident_bytes() - first < 4 * 2**20


@pytest.mark.skipif(not STATM.exists(), reason="only Linux has /proc/self/statm")
def test_memory_is_freed_with_the_cache() -> None:
    before = resident_bytes()
    layers = allocate([LayerShape(8, 128, 128)], 1024, 16, torch.float32, CPU)
    layers[0].keys.fill_(1.0)
    assert resident_bytes() - before > 60 * 2**20
    del layers
    assert resident_bytes() - before < 32 * 2**20


def test_a_write_changes_the_given_slots_and_no_others() -> None:
    (layer,) = allocate([LayerShape(2, 4, 3)], 3, 4, torch.float32, CPU)
    keys, values = torch.randn(3, 2, 4), torch.randn(3, 2, 3)
    slots = [9, 0, 7]
    layer.write(torch.tensor(slots), keys, values)
    for i, slot in enumerate(slots):
        assert torch.equal(layer.keys[slot // 4, slot % 4], keys[i])
        assert torch.equal(layer.values[slot // 4, slot % 4], values[i])
    assert layer.keys.flatten(0, 1).any(dim=-1).any(dim=-1).nonzero().flatten().tolist() == sorted(slots)
    assert layer.values.flatten(0, 1).any(dim=-1).any(dim=-1).nonzero().flatten().tolist() == sorted(slots)
