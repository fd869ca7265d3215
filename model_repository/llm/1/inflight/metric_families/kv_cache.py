"""Metrics of the KV cache, host memory and the disk: what is in them, and what they spare."""

from collections.abc import Callable, Mapping

from inflight.kv_cache.disk_tier import DiskCounts
from inflight.metric_families.family import COUNTER, GAUGE, Family, live, value


def _of_disk(
    name: str, kind: str, help: str, read: Callable[[DiskCounts], Mapping[str, float]], label: str | None = None
) -> Family:
    """A metric that exists only where prefixes are on disk."""
    return Family(name, kind, help, label, read=lambda stats: {} if stats.disk is None else read(stats.disk))


BLOCKS = (
    live(
        "inflight:kv_cache_usage_perc",
        "Share of the KV cache's blocks that running requests hold, from 0 to 1, in steps of 1/1024.",
        # Differences of multiples of 1/1024 are exact, so the sum of all changes ends at 0, not near it.
        lambda s: s.blocks_used * 1024 // s.blocks_total / 1024,
    ),
    value(
        "inflight:num_preemptions_total",
        COUNTER,
        "How often a running request lost its blocks and had to wait again.",
        lambda s: s.preemptions,
    ),
    value(
        "inflight:num_swaps_total",
        COUNTER,
        "Preemptions that kept the keys and values in host memory, so that they need not be computed again.",
        lambda s: s.swaps,
    ),
    value(
        "inflight:host_cache_usage_perc",
        GAUGE,
        "Share of the host memory that preempted requests hold, from 0 to 1, in steps of 1/1024. Prefixes may use the "
        "rest, and make room for preempted requests.",
        lambda s: s.host_blocks_used * 1024 // max(1, s.host_blocks_total) / 1024,
    ),
    value(
        "inflight:host_cache_prefix_blocks",
        GAUGE,
        "Blocks in host memory that keep prefixes which the KV cache had no room for.",
        lambda s: s.host_blocks_kept,
    ),
    _of_disk(
        "inflight:disk_cache_blocks",
        GAUGE,
        "Blocks on disk. It exists only with `kv_offloading_path`, as do the next two.",
        lambda disk: {"": disk.blocks},
    ),
    _of_disk("inflight:disk_cache_bytes", GAUGE, "Size of the files with these blocks.", lambda disk: {"": disk.bytes}),
    _of_disk(
        "inflight:disk_cache_operations_total",
        COUNTER,
        "Blocks that were `written`, `read` for a request, `dropped` instead of written, because too many waited or "
        "the disk refused them, or `corrupt` when they were read, and therefore computed.",
        lambda disk: disk.outcomes,
        label="outcome",
    ),
)
"""How many blocks are used, and how often requests lose them."""

PREFIXES = (
    value(
        "inflight:prefix_cache_queries_total",
        COUNTER,
        "Prompt tokens that could have been in the prefix cache: those of all requests that have begun.",
        lambda s: s.prompt_tokens,
    ),
    value(
        "inflight:prefix_cache_hits_total",
        COUNTER,
        "Prompt tokens that were in the prefix cache and were not computed.",
        lambda s: s.cached_tokens,
    ),
    Family(
        "inflight:prefix_cache_hits_by_tier_total",
        COUNTER,
        "These tokens by where their keys and values were: in the KV cache (`device`), in `host` memory, on `disk`, or "
        "with another engine (`remote`).",
        label="tier",
        read=lambda s: s.hits,
    ),
)
"""What is found in the prefix cache."""

EVENTS = (
    Family(
        "inflight:kv_event_batches_total",
        COUNTER,
        "Batches of KV events that were `sent`, or `dropped` because more than `max_queue_size` of them waited. It "
        "exists only with `kv_events_config`. Batches that a single slow follower misses are not counted.",
        label="outcome",
        read=lambda s: s.kv_event_batches,
    ),
)
"""What routers are told of the prefix cache."""
