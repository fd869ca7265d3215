"""KV events in the form in which vLLM 0.32 sends them: MessagePack.

A batch is an array, and each event in it is a map whose key `type` names the class. Routers refuse unknown keys.
"""

from collections.abc import Sequence

import msgspec

from inflight.kv_cache.block_events import BlockEvent, BlocksStored

# vLLM's word for the memory of the device that computes, whatever it is. Routers refuse other words.
_MEDIUM = "GPU"


class BlockStored(msgspec.Struct, tag=True):
    """Blocks of `block_size` tokens each, one after the other."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = _MEDIUM
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """Blocks that left the cache."""

    block_hashes: list[int]
    medium: str | None = _MEDIUM


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    """What happened in a step."""

    ts: float
    """Seconds since 1970."""
    events: list[Event]
    data_parallel_rank: int = 0


def wire_hash(name: bytes) -> int:
    """Return the hash of a block as it is sent. Like vLLM, this takes the last 64 bits as an unsigned number."""
    return int.from_bytes(name[-8:], "big")


def wire_event(event: BlockEvent, block_size: int) -> Event:
    """Return an event in the form in which it is sent."""
    hashes = [wire_hash(name) for name in event.hashes]
    if not isinstance(event, BlocksStored):
        return BlockRemoved(hashes)
    parent = None if event.parent is None else wire_hash(event.parent)
    return BlockStored(hashes, parent, event.token_ids, block_size)


def encode(time: float, events: Sequence[Event]) -> bytes:
    """Return a batch in MessagePack."""
    return msgspec.msgpack.encode(Batch(time, list(events)))
