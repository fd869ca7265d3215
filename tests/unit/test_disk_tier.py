"""Prefixes that are written to disk once they are computed, and that later requests bring along."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inflight.kv_cache import disk_tier, disk_writer
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.disk_store import DiskStore
from inflight.kv_cache.disk_tier import DiskTier
from inflight.kv_cache.disk_writer import DiskWriter
from inflight.request import Request
from tests.eventually import eventually
from tests.unit.builders import admit, make_request
from tests.unit.disks import full_disk

BYTES = 32
PROMPT = list(range(14))


class Cache:
    """The cache of an engine with a disk. The bytes of a block are the tokens in it."""

    def __init__(self, folder: Path, prefill_seconds: float | None = None, fingerprint: str = "a") -> None:
        self.memory = np.zeros((16, BYTES), dtype=np.uint8)
        self.tables = BlockTables(BlockPool(16), 4, prefix_caching=True, hash_key=b"key")
        self.store = DiskStore(folder, fingerprint, BYTES, 1 << 20)
        self.tier = DiskTier(
            self.store, self.tables, read_blocks=self.read, prefill_seconds=lambda tokens: prefill_seconds
        )

    def read(self, blocks: Sequence[int], found: NDArray[np.uint8]) -> None:
        found[:] = self.memory[blocks]

    def compute(self, request: Request) -> int:
        """Compute a request that joins now. Return how many tokens it lacked."""
        assert admit(self.tables, request)
        for data, blocks in self.tables.planned.take_imported():
            self.memory[list(blocks)] = data
        for position in range(request.num_computed, len(request.token_ids)):
            self.memory[request.blocks[position // 4], position % 4] = request.token_ids[position]
        for index, token in enumerate(request.token_ids):
            assert self.memory[request.blocks[index // 4], index % 4] == token
        lacked = request.num_uncomputed
        self.tables.commit(request, lacked)
        self.tables.release(request)
        self.tier.save()
        return lacked

    def serve(self, name: str, prompt: Sequence[int] = PROMPT, tenant: str = "") -> int:
        request = make_request(name, prompt, tenant=tenant)
        self.tier.bring(request)
        return self.compute(request)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the three full blocks of the prompt."""
    cache = Cache(tmp_path)
    assert cache.serve("a") == 14
    cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 3, "read": 0, "dropped": 0, "corrupt": 0}
    return tmp_path


def test_after_a_restart_a_request_brings_what_is_on_disk(folder: Path) -> None:
    cache = Cache(folder)
    request = make_request("b", PROMPT)
    cache.tier.bring(request)
    assert cache.compute(request) == 2
    assert request.hits == {"device": 0, "host": 0, "disk": 12}
    cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 0, "read": 3, "dropped": 0, "corrupt": 0}


def test_what_the_cache_has_is_not_read(folder: Path) -> None:
    cache = Cache(folder)
    cache.serve("b")
    assert cache.serve("c", [*PROMPT, 1]) == 3
    assert cache.tier.counts().outcomes["read"] == 3
    cache.tier.close()


def test_only_what_the_cache_lacks_is_read(folder: Path) -> None:
    cache = Cache(folder)
    assert cache.serve("b", PROMPT[:5]) == 5
    request = make_request("c", PROMPT)
    cache.tier.bring(request)
    assert request.imported is not None
    assert (request.imported.first_block, len(request.imported.data)) == (1, 2)
    assert cache.compute(request) == 2
    cache.tier.close()


def test_blocks_without_those_before_them_are_of_no_use(folder: Path) -> None:
    """The beginning was evicted while the request waited."""
    cache, other = Cache(folder), Cache(folder)
    cache.serve("b", PROMPT[:5])
    request = make_request("c", PROMPT)
    cache.tier.bring(request)
    assert other.compute(request) == 14
    for each in (cache, other):
        each.tier.close()


def test_a_damaged_block_ends_the_prefix(folder: Path) -> None:
    cache = Cache(folder)
    request = make_request("b", PROMPT)
    cache.tables.prefixes.lookup(request)
    path = folder / cache.store._path(request.block_hashes[2])
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert cache.serve("b") == 6
    cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 1, "read": 2, "dropped": 0, "corrupt": 1}


def test_salts_and_fingerprints_separate(folder: Path) -> None:
    cache = Cache(folder)
    cache.tables.prefixes.per_tenant = True
    assert cache.serve("b", tenant="someone") == 14
    other = Cache(folder, fingerprint="other")
    assert other.serve("b") == 14
    for each in (cache, other):
        each.tier.close()


@pytest.mark.parametrize(("seconds", "lacked"), [(1e-9, 14), (1e9, 2)])
def test_the_disk_is_read_only_where_it_is_faster(folder: Path, seconds: float, lacked: int) -> None:
    cache = Cache(folder, prefill_seconds=seconds)
    assert cache.serve("b") == lacked
    cache.tier.close()


def test_what_waiting_requests_have_read_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "_MAX_READ_BYTES", 3 * BYTES)
    cache = Cache(folder)
    first, second, third = (make_request(name, PROMPT) for name in "bcd")
    cache.tier.bring(first)
    cache.tier.bring(second)
    assert first.imported is not None
    assert second.imported is None
    first.imported = None
    gc.collect()
    cache.tier.bring(third)
    assert third.imported is not None
    cache.tier.close()


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_writer, "_MAX_WAITING_BYTES", 2 * BYTES)
    cache = Cache(tmp_path)
    cache.serve("a")
    cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 2, "read": 0, "dropped": 1, "corrupt": 0}


def test_a_disk_that_refuses_costs_no_request(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").touch()
    assert cache.serve("a") == 14
    cache.tier.close()
    assert cache.tier.counts().outcomes["dropped"] == 3
    assert cache.serve("b") == 2


def test_a_full_disk_keeps_no_engine_from_starting(folder: Path) -> None:
    with full_disk():
        cache = Cache(folder)
        assert cache.serve("b") == 2
        assert cache.serve("c", range(20, 34)) == 14
        cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 0, "read": 3, "dropped": 3, "corrupt": 0}


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_blocks_for_whose_copy_memory_is_short_are_not_written(tmp_path: Path, error: type[Exception]) -> None:
    cache = Cache(tmp_path)

    def fail(*_: object) -> None:
        raise error("out of memory")

    cache.tier._read_blocks = fail
    assert cache.serve("a") == 14
    cache.tier.close()
    assert cache.tier.counts().outcomes == {"written": 0, "read": 0, "dropped": 3, "corrupt": 0}


def test_a_prompt_for_whose_blocks_memory_is_short_is_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(folder)
    monkeypatch.setattr(disk_tier, "_MAX_READ_BYTES", 3 * BYTES)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("out of memory")

    with monkeypatch.context() as short:
        short.setattr(disk_tier.np, "empty", fail)
        short_of_memory = make_request("a", PROMPT)
        cache.tier.bring(short_of_memory)
    assert short_of_memory.imported is None
    # What was not read does not count against the bound.
    assert cache.serve("b") == 2
    cache.tier.close()


def test_what_is_written_is_not_kept_in_memory(tmp_path: Path) -> None:
    writer, data = DiskWriter(DiskStore(tmp_path, "a", BYTES, 1 << 20)), np.zeros((1, BYTES), dtype=np.uint8)
    kept = weakref.ref(data)
    writer.add([bytes(16)], data)
    del data
    assert eventually(lambda: kept() is None)
    writer.close()
