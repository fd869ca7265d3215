"""The engine takes the processors and the memory that its process may use."""

from collections.abc import Iterator

import pytest
import torch

from inflight.cpu_count import allowed_cpus
from inflight.model.cache import memory
from inflight.model.loading import loader
from tests.engine.models import Tiny

MIB = 2**20


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_num_threads_sets_the_threads_of_torch(tiny: Tiny) -> None:
    tiny.engine(num_threads=1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("usable", "threads"), [(3, 3), (4, 4), (64, 4)])
def test_the_default_is_never_more_than_the_process_may_use(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, usable: int, threads: int
) -> None:
    monkeypatch.setattr(loader, "usable_cpus", lambda: usable)
    tiny.engine()
    assert torch.get_num_threads() == threads


def test_more_threads_than_processors_are_refused(tiny: Tiny) -> None:
    most = allowed_cpus()
    with pytest.raises(ValueError, match=f"num_threads is {most + 1}; it must be at most {most}, the processors"):
        tiny.engine(num_threads=most + 1)


def test_the_cache_takes_its_share_of_what_a_container_leaves(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: MIB)
    engine = tiny.engine(kv_cache_tokens=None, kv_cache_memory_fraction=0.5)
    bytes_per_token = memory.kv_tensors.bytes_per_token([layer.shape for layer in engine.model.layers], torch.float32)
    assert engine.stats().blocks_total == MIB // 2 // (8 * bytes_per_token)


def test_a_cache_that_does_not_fit_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_per_token = memory.kv_tensors.bytes_per_token(
        [layer.shape for layer in tiny.engine().model.layers], torch.float32
    )
    monkeypatch.setattr(memory, "free_memory", lambda: 64 * bytes_per_token)
    assert tiny.engine(kv_cache_tokens=64).stats().blocks_total == 8
    with pytest.raises(ValueError, match=f"kv_cache_tokens is 72; with {bytes_per_token} bytes each they take 0.0 GiB"):
        tiny.engine(kv_cache_tokens=72)
