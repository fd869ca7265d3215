"""Metrics of disaggregated prefill: prompts that are transferred from one engine to another."""

from collections.abc import Callable, Mapping

from inflight.kv_transfer.kv_transfer_stats import KVTransferStats
from inflight.metric_families.family import COUNTER, GAUGE, Family


def _of_transfers(
    name: str,
    help: str,
    read: Callable[[KVTransferStats], Mapping[str, float]],
    label: str | None = None,
    kind: str = COUNTER,
) -> Family:
    """A metric that exists only where prompts are transferred."""
    return Family(name, kind, help, label, read=lambda s: {} if s.kv_transfer is None else read(s.kv_transfer))


KV_TRANSFER = (
    _of_transfers(
        "inflight:kv_transfer_exports_total",
        "Prompts that were computed for other servers, by what became of them: `fetched`, `released` (not wanted any "
        "more), `expired` (nobody came for them), `full` (they had no room, so the other server computes them) and "
        "`failed`. Like the next ones, it exists only with `kv_transfer_config`.",
        lambda t: t.exports,
        label="outcome",
    ),
    _of_transfers(
        "inflight:kv_transfer_imports_total",
        "Prompts that were fetched from other servers.",
        lambda t: {"": t.imports},
    ),
    _of_transfers(
        "inflight:kv_transfer_fallbacks_total",
        "Prompts that were to be fetched and were computed here instead, by reason.",
        lambda t: t.fallbacks,
        label="reason",
    ),
    _of_transfers(
        "inflight:kv_transfer_bytes_total",
        "Bytes of keys and values that were `sent` to other servers and `received` from them, and those that were "
        "`skipped`: this server has them in its cache, or computes them in any case.",
        lambda t: t.bytes,
        label="direction",
    ),
    _of_transfers(
        "inflight:kv_transfer_fetch_seconds_total",
        "Time of all fetches together. Several run at once.",
        lambda t: {"": t.fetch_seconds},
    ),
    _of_transfers(
        "inflight:kv_transfer_held_bytes",
        "Bytes that are `exported` and wait to be fetched, and bytes that are `imported` and wait for the first step "
        "of their request.",
        lambda t: {"exported": t.exported_bytes, "imported": t.imported_bytes},
        label="direction",
        kind=GAUGE,
    ),
)
