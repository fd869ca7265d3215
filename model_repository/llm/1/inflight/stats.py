"""Counters and current state of an engine."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inflight.arrivals import Arrivals
from inflight.kv_cache.disk_tier import DiskCounts
from inflight.kv_transfer.kv_transfer_stats import KVTransferStats
from inflight.metrics import EngineMetrics
from inflight.scheduler.scheduler import Scheduler
from inflight.tenant_costs import TenantUse

# Waiting requests are counted for so many levels. Each is a metric, and configurations may have any number of levels.
_MAX_COUNTED_LEVELS = 16


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine. Counters run from the engine's start."""

    time: float
    """When the snapshot was taken, in seconds since 1970."""
    started: float
    """When the engine was created, in seconds since 1970."""
    steps: int
    step_seconds: float
    """Time spent in steps."""
    prompt_tokens: int
    """Prompt tokens of admitted requests."""
    cached_tokens: int
    """Those of the prompt tokens that were in the prefix cache."""
    prefill_tokens: int
    """Tokens computed before a request's first output token, or computed again after a preemption."""
    decode_tokens: int
    """Tokens computed one at a time, after a request's first output token."""
    padding_avoided: int
    """Additional tokens that would have been computed if all requests of a step were padded to the longest one."""
    padding_tokens: int
    """Additional tokens that the batching strategy would have computed with padding."""
    budget_tokens: int
    """Maximum number of tokens that the steps could have computed: the sum of their token budgets."""
    generated_tokens: int
    """Tokens sampled."""
    output_tokens: int
    """Tokens in outputs. Tokens sampled after the end of a stop string are not counted."""
    finished: Mapping[str, int]
    """Number of ended outputs by finish reason."""
    preemptions: int
    swaps: int
    """Preemptions that kept the keys and values in host memory."""
    running: int
    waiting: int
    waiting_tokens: int
    """Known tokens of the waiting requests."""
    waiting_at_level: Mapping[int, int]
    """The number of waiting requests of each priority level, up to level 16. Empty without levels."""
    block_size: int
    """Tokens per block."""
    blocks_total: int
    blocks_used: int
    blocks_free: int
    """Blocks available to requests: total minus used."""
    blocks_cached: int
    """Free blocks that hold a reusable prefix."""
    host_blocks_total: int
    """Blocks of host memory."""
    host_blocks_used: int
    """Those that preempted requests hold."""
    host_blocks_kept: int
    """Those that keep prefixes."""
    hits: Mapping[str, int]
    """Prompt tokens that were not computed, by where their keys and values were: on the `device`, in `host` memory, on
    `disk`, or with another engine (`remote`)."""
    forced_tokens: int
    """Output tokens that were not sampled, because a grammar allowed no other."""
    drafts: int
    """Steps of a request that computed drafted tokens."""
    draft_tokens: int
    """Drafted tokens that went through the model."""
    accepted_draft_tokens: int
    """Those that were right, and are part of the output."""
    accepted_draft_tokens_at: Sequence[int]
    """How many of these were at each of the first `num_speculative_tokens` places of a draft. Empty where no drafts are
    made."""
    tuned: Mapping[str, float] = field(default_factory=dict)
    """The values of the settings that are tuned. Empty without `auto_tune`; so is the next one."""
    tunings: Mapping[str, int] = field(default_factory=dict)
    """How often each of them has changed."""
    tenants: Mapping[str, TenantUse] = field(default_factory=dict)
    """What each tenant used. Empty without `price_per_hour`."""
    price_per_second: float = 0.0
    grammars_compiled: int = 0
    grammar_compile_seconds: float = 0.0
    images_read: int = 0
    image_read_seconds: float = 0.0
    grammar_mask_seconds: float = 0.0
    """Time spent on finding the tokens that grammars allow. The model runs in the meantime."""
    kv_event_batches: Mapping[str, int] = field(default_factory=dict)
    """Batches of KV events, by what became of them. Empty where none are published."""
    kv_transfer: KVTransferStats | None = None
    """None where nothing is transferred."""

    disk: DiskCounts | None = None
    """What is on disk. None without `kv_offloading_path`."""

    lora_requests: Mapping[str, int] = field(default_factory=dict)
    """Number of ended outputs by LoRA adapter. Empty without adapters."""
    lora_adapters: int | None = None
    """Adapters of `lora_folder` in memory; None without it."""
    lora_waiting: int | None = None
    """Requests that wait until their adapter can be read; None without `lora_folder`."""
    lora_loads: int | None = None
    """How often one was read; None without `lora_folder`."""
    lora_most: int = 0
    """How many adapters fit in memory."""
    lora_running: frozenset[str] = frozenset()
    """Names of the adapters of running requests."""
    lora_wanted: frozenset[str] = frozenset()
    """Names of the adapters of waiting requests, also of those that count in `lora_waiting`."""

    length_correlations: Mapping[str, float] = field(default_factory=dict)
    """Rank correlation of predicted and true output lengths: by the predictor that reads prompts, of the tenants'
    quantiles, and of the one of both in use. Empty without the former."""

    @classmethod
    def of(cls, scheduler: Scheduler, arrivals: Arrivals, metrics: EngineMetrics) -> "EngineStats":
        """Return a snapshot of what the core knows. Other parts of an engine add the rest."""
        tables, pool = scheduler.tables, scheduler.tables.pool
        used = pool.num_used
        levels = range(1, min(scheduler.policies.priority_levels, _MAX_COUNTED_LEVELS) + 1)
        return cls(
            time=time.time(),
            started=metrics.started,
            steps=metrics.steps,
            step_seconds=metrics.step_seconds,
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            prefill_tokens=metrics.prefill_tokens,
            decode_tokens=metrics.decode_tokens,
            padding_avoided=metrics.padding_avoided,
            padding_tokens=metrics.padding_tokens,
            budget_tokens=metrics.budget_tokens,
            generated_tokens=metrics.sampled_tokens,
            output_tokens=metrics.output_tokens,
            finished=dict(metrics.finished),
            lora_requests=dict(metrics.lora_requests),
            lora_running=frozenset(r.options.lora_name for r in tuple(scheduler.running.values())) - {""},
            lora_wanted=frozenset(arrivals.adapters()),
            preemptions=scheduler.preemptor.num_preemptions,
            swaps=scheduler.preemptor.num_swaps,
            running=len(scheduler.running),
            waiting=arrivals.num_waiting,
            waiting_tokens=arrivals.num_waiting_tokens,
            waiting_at_level={level: arrivals.num_waiting_at(level) for level in levels},
            block_size=tables.block_size,
            blocks_total=pool.num_blocks,
            blocks_used=used,
            blocks_free=pool.num_blocks - used,
            blocks_cached=pool.num_cached,
            host_blocks_total=tables.host.num_blocks,
            host_blocks_used=tables.host.num_used,
            host_blocks_kept=tables.host.num_prefixes,
            hits=dict(metrics.hits),
            forced_tokens=metrics.forced_tokens,
            drafts=metrics.drafts,
            draft_tokens=metrics.draft_tokens,
            accepted_draft_tokens=metrics.accepted_tokens,
            accepted_draft_tokens_at=tuple(metrics.accepted_at),
            length_correlations=scheduler.lengths.correlations,
            tuned={} if scheduler.tuner is None else scheduler.tuner.values,
            tunings={} if scheduler.tuner is None else dict(scheduler.tuner.num_changes),
            tenants={} if scheduler.costs is None else dict(scheduler.costs.by_tenant),
            price_per_second=scheduler.config.price_per_hour / 3600,
        )

    @property
    def cost_per_thousand_tokens(self) -> Mapping[str, float]:
        """What 1,000 tokens have cost since the start: of prompts, of outputs, and the sum of both for 1,000 tokens of
        output. Empty without `price_per_hour`."""
        if not self.price_per_second:
            return {}
        use = sum(self.tenants.values(), TenantUse())
        price = 1e3 * self.price_per_second
        return {
            "prompt": price * use.prompt_seconds / max(1, use.prompt_tokens),
            "output": price * use.output_seconds / max(1, use.output_tokens),
            "total": price * use.seconds / max(1, use.output_tokens),
        }

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model: in prefill, in decode and in drafts."""
        return self.prefill_tokens + self.decode_tokens + self.draft_tokens
