"""Every metric of the server: its name, its meaning, and the engine's number that it shows.

`docs/reference/metrics.md` is generated from this file. A metric that vLLM also has bears vLLM's name, with our prefix.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inflight import metrics
from inflight.kv_cache.disk_tier import DiskCounts
from inflight.kv_transfer.kv_transfer_stats import KVTransferStats
from inflight.stats import EngineStats
from inflight.tenant_costs import TenantUse

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

COMMON_LABELS = ("model", "version", "instance")
"""Labels of every metric: name and version of the model, and the name of Triton's model instance."""
REFUSAL_REASONS = ("invalid", "overload", "error")

_REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_QUEUE_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, *_REQUEST_SECONDS)
_LENGTHS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


@dataclass(frozen=True)
class Family:
    """Metrics with the same name, which differ in at most one label besides the common ones."""

    name: str
    kind: str
    help: str
    label: str | None = None
    """The label whose values are the keys of what `read` returns."""
    read: Callable[[EngineStats], Mapping[str, float]] | None = None
    """Returns the current numbers by the value of the label, or by the empty string if there is no label. Counters that
    the server itself keeps have no `read`."""
    observes: str | None = None
    """Name of the observations of a histogram. Triton's histogram counts them unless the engine does."""
    buckets: tuple[float, ...] = ()
    is_live: bool = False
    """Whether routers read it, which need it fresh: it is updated ten times a second, and the others twice."""


def _value(name: str, kind: str, help: str, read: Callable[[EngineStats], float]) -> Family:
    return Family(name, kind, help, read=lambda stats: {"": read(stats)})


def _live(name: str, help: str, read: Callable[[EngineStats], float]) -> Family:
    return replace(_value(name, GAUGE, help, read), is_live=True)


def _of_drafts(
    name: str, help: str, read: Callable[[EngineStats], Mapping[str, float]], label: str | None = None
) -> Family:
    """A counter that exists only where drafts are made."""
    return Family(name, COUNTER, help, label, read=lambda stats: read(stats) if stats.accepted_draft_tokens_at else {})


def _of_disk(
    name: str, kind: str, help: str, read: Callable[[DiskCounts], Mapping[str, float]], label: str | None = None
) -> Family:
    """A metric that exists only where prefixes are on disk."""
    return Family(name, kind, help, label, read=lambda stats: {} if stats.disk is None else read(stats.disk))


def _of_transfers(
    name: str,
    help: str,
    read: Callable[[KVTransferStats], Mapping[str, float]],
    label: str | None = None,
    kind: str = COUNTER,
) -> Family:
    """A metric that exists only where prompts are transferred."""
    return Family(name, kind, help, label, read=lambda s: {} if s.kv_transfer is None else read(s.kv_transfer))


def _of_tenants(name: str, help: str, read: Callable[[TenantUse, float], float]) -> Family:
    """A counter for each tenant, of what it used and of the price of a second."""
    return Family(
        name,
        COUNTER,
        help,
        label="tenant",
        read=lambda s: {tenant: read(use, s.price_per_second) for tenant, use in s.tenants.items()},
    )


def _histogram(name: str, observes: str, buckets: tuple[float, ...], help: str) -> Family:
    return Family(name, HISTOGRAM, help, observes=observes, buckets=buckets)


def _filled(name: str, observes: str, help: str) -> Family:
    return _histogram(name, observes, metrics.FILLED_BOUNDS[observes], help)


FAMILIES = (
    _live("inflight:num_requests_running", "Requests in the running set.", lambda s: s.running),
    _live("inflight:num_requests_waiting", "Requests that wait to be admitted.", lambda s: s.waiting),
    Family(
        "inflight:num_requests_waiting_by_priority",
        GAUGE,
        "Those of each priority level, up to level 16. It exists only with `priority_levels`.",
        label="priority",
        read=lambda s: {str(level): count for level, count in s.waiting_at_level.items()},
    ),
    _value(
        "inflight:num_tokens_waiting",
        GAUGE,
        "Tokens of the requests that wait to be admitted; `max_queue_tokens` bounds them.",
        lambda s: s.waiting_tokens,
    ),
    _live(
        "inflight:kv_cache_usage_perc",
        "Share of the KV cache's blocks that running requests hold, from 0 to 1, in steps of 1/1024.",
        # Differences of multiples of 1/1024 are exact, so the sum of all changes ends at 0, not near it.
        lambda s: s.blocks_used * 1024 // s.blocks_total / 1024,
    ),
    _value(
        "inflight:num_preemptions_total",
        COUNTER,
        "How often a running request lost its blocks and had to wait again.",
        lambda s: s.preemptions,
    ),
    _value(
        "inflight:num_swaps_total",
        COUNTER,
        "Preemptions that kept the keys and values in host memory, so that they need not be computed again.",
        lambda s: s.swaps,
    ),
    _value(
        "inflight:host_cache_usage_perc",
        GAUGE,
        "Share of the host memory that preempted requests hold, from 0 to 1, in steps of 1/1024. Prefixes may use the "
        "rest, and make room for preempted requests.",
        lambda s: s.host_blocks_used * 1024 // max(1, s.host_blocks_total) / 1024,
    ),
    _value(
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
    Family(
        "inflight:request_success_total",
        COUNTER,
        "Requests that ended, by finish reason. Each of n samples counts as a request. The name is vLLM's: requests "
        "that were cancelled, timed out or failed count too, under their own reasons.",
        label="finished_reason",
        read=lambda s: s.finished,
    ),
    Family(
        "inflight:request_refused_total",
        COUNTER,
        "Requests that were refused on arrival: `invalid` (bad input), `overload` (the queue is full) or `error` (an "
        "internal error).",
        label="reason",
    ),
    _value(
        "inflight:prompt_tokens_total",
        COUNTER,
        "Prompt tokens of the requests that have begun, including tokens found in the prefix cache.",
        lambda s: s.prompt_tokens,
    ),
    _value(
        "inflight:generation_tokens_total",
        COUNTER,
        "Tokens of outputs, including the tokens that end an output.",
        lambda s: s.output_tokens,
    ),
    _value(
        "inflight:prefix_cache_queries_total",
        COUNTER,
        "Prompt tokens that could have been in the prefix cache: those of all requests that have begun.",
        lambda s: s.prompt_tokens,
    ),
    _value(
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
    Family(
        "inflight:computed_tokens_total",
        COUNTER,
        "Tokens that went through the model. `decode`: one at a time, after a request's first output token. `draft`: "
        "drafted ones, where there are any. `prefill`: all others, including those computed again after a preemption.",
        label="kind",
        read=lambda s: {
            "prefill": s.prefill_tokens,
            "decode": s.decode_tokens,
            **({"draft": s.draft_tokens} if s.accepted_draft_tokens_at else {}),
        },
    ),
    _value(
        "inflight:step_budget_tokens_total",
        COUNTER,
        "Tokens that the steps could have computed, `max_num_batched_tokens` each. The rate of computed tokens divided "
        "by the rate of this metric is the batch utilisation.",
        lambda s: s.budget_tokens,
    ),
    _value(
        "inflight:padding_tokens_avoided_total",
        COUNTER,
        "Additional tokens that padded batches of the same requests would have computed: for every step, the number of "
        "rows times the longest row, minus the tokens.",
        lambda s: s.padding_avoided,
    ),
    _value(
        "inflight:padding_tokens_total",
        COUNTER,
        "Additional tokens that the batching strategies `static`, `dynamic` and `bucketed` would compute if they "
        "padded: prompts to the longest prompt of the batch, and the slots of requests that ended early. They are only "
        "counted, not computed.",
        lambda s: s.padding_tokens,
    ),
    _filled("inflight:step_duration_seconds", metrics.STEP_SECONDS, "Duration of a step."),
    _filled("inflight:iteration_tokens_total", metrics.STEP_TOKENS, "Tokens computed in a step."),
    _filled("inflight:iteration_requests", metrics.STEP_REQUESTS, "Requests in a step."),
    _histogram(
        "inflight:time_to_first_token_seconds",
        metrics.FIRST_TOKEN_SECONDS,
        _FIRST_TOKEN_SECONDS,
        "Time from a request's arrival to the end of the step that sampled its first token.",
    ),
    _filled(
        "inflight:inter_token_latency_seconds",
        metrics.TOKEN_GAP_SECONDS,
        "Time between two tokens of a request, measured between the ends of the steps that sampled them.",
    ),
    _histogram(
        "inflight:e2e_request_latency_seconds",
        metrics.REQUEST_SECONDS,
        _REQUEST_SECONDS,
        "Time from a request's arrival to its last piece of output, for every finish reason.",
    ),
    _histogram(
        "inflight:request_queue_time_seconds",
        metrics.QUEUE_SECONDS,
        _QUEUE_SECONDS,
        "Time from a request's arrival to the start of its first step.",
    ),
    _histogram(
        "inflight:request_prompt_tokens",
        metrics.PROMPT_TOKENS,
        _LENGTHS,
        "Prompt tokens of a request that ended, for every finish reason.",
    ),
    _histogram(
        "inflight:request_generation_tokens",
        metrics.OUTPUT_TOKENS,
        _LENGTHS,
        "Output tokens of a request that ended, for every finish reason.",
    ),
    _value(
        "inflight:grammar_forced_tokens_total",
        COUNTER,
        "Output tokens that were not sampled, because the request's grammar allowed no other.",
        lambda s: s.forced_tokens,
    ),
    _value(
        "inflight:grammar_compilations_total",
        COUNTER,
        "Schemas, regular expressions and grammars that were compiled or refused. Equal ones are compiled once.",
        lambda s: s.grammars_compiled,
    ),
    _value(
        "inflight:grammar_compile_seconds_total",
        COUNTER,
        "Time spent on compiling them, on a thread of its own.",
        lambda s: s.grammar_compile_seconds,
    ),
    _value(
        "inflight:grammar_mask_seconds_total",
        COUNTER,
        "Time spent on finding the tokens that grammars allow, while the model runs.",
        lambda s: s.grammar_mask_seconds,
    ),
    _of_drafts(
        "inflight:spec_decode_num_drafts_total",
        "Drafts that went through the model: one for each step of a request with drafted tokens. Like the next three, "
        "it exists only with `speculative_config`.",
        lambda s: {"": s.drafts},
    ),
    _of_drafts(
        "inflight:spec_decode_num_draft_tokens_total",
        "Drafted tokens that went through the model.",
        lambda s: {"": s.draft_tokens},
    ),
    _of_drafts(
        "inflight:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that were right. The rate of this metric divided by that of the drafted tokens is the "
        "acceptance rate; divided by the rate of drafts, it is the number of tokens that a draft gains.",
        lambda s: {"": s.accepted_draft_tokens},
    ),
    _of_drafts(
        "inflight:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafted tokens that were right, by their place in the draft, from 0. Requests may ask for longer drafts than "
        "`num_speculative_tokens`; places after that number are not counted here.",
        lambda s: {str(place): count for place, count in enumerate(s.accepted_draft_tokens_at)},
        label="position",
    ),
    Family(
        "inflight:kv_event_batches_total",
        COUNTER,
        "Batches of KV events that were `sent`, or `dropped` because more than `max_queue_size` of them waited. It "
        "exists only with `kv_events_config`. Batches that a single slow follower misses are not counted.",
        label="outcome",
        read=lambda s: s.kv_event_batches,
    ),
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
    Family(
        "inflight:length_rank_correlation",
        GAUGE,
        "Spearman's rank correlation of predicted and true output lengths, over the newest 256 outputs, from -1 to 1. "
        "`prompt`: of predictions from the prompt; `tenant`: of those from the tenant's past outputs; `used`: of those "
        "that are used. 0 until 64 outputs are known. It exists with a `length_predictor` that reads prompts.",
        label="prediction",
        read=lambda s: {name: round(1024 * found) / 1024 for name, found in s.length_correlations.items()},
    ),
    Family(
        "inflight:auto_tune_setting",
        GAUGE,
        "Settings that `auto_tune` adjusts: `max_num_seqs`, `max_num_batched_tokens`, `step_seconds` (how long prompts "
        "may make a step with decodes) and `watermark_tokens` (for how many tokens of each running request admission "
        "keeps blocks). Like the next one, it exists only with `auto_tune`.",
        label="setting",
        read=lambda s: s.tuned,
    ),
    Family(
        "inflight:auto_tune_changes_total",
        COUNTER,
        "How often each of them has changed. The trace has the reasons.",
        label="setting",
        read=lambda s: s.tunings,
    ),
    _of_tenants(
        "inflight:tenant_machine_seconds_total",
        "Seconds of steps that a tenant's requests used, by the step-time model. The sum over tenants is the time of "
        "all steps; idle time belongs to nobody. After 100 tenants, all others share the account `(others)`. Like the "
        "next four, it exists only with `price_per_hour`.",
        lambda use, _: use.seconds,
    ),
    _of_tenants("inflight:tenant_cost_total", "What these seconds cost.", lambda use, price: use.seconds * price),
    _of_tenants(
        "inflight:tenant_prompt_tokens_total",
        "Prompt tokens of a tenant's requests that have begun.",
        lambda use, _: use.prompt_tokens,
    ),
    _of_tenants(
        "inflight:tenant_generation_tokens_total",
        "Output tokens of a tenant's requests.",
        lambda use, _: use.output_tokens,
    ),
    Family(
        "inflight:cost_per_thousand_tokens",
        GAUGE,
        "What 1,000 tokens have cost since the start: `prompt` tokens, `output` tokens, and all steps for 1,000 output "
        "tokens (`total`).",
        label="kind",
        read=lambda s: s.cost_per_thousand_tokens,
    ),
    Family(
        "nv_trt_llm_kv_cache_block_metrics",
        GAUGE,
        "Blocks of the KV cache, in the form of TensorRT-LLM's backend: `max`, `used`, `free`, tokens per block, and "
        "the used fraction. From release 25.04 on, Triton builds the ORCA header `endpoint-load-metrics` from it.",
        label="kv_cache_block_type",
        read=lambda s: {
            "max": s.blocks_total,
            "used": s.blocks_used,
            "free": s.blocks_free,
            "tokens_per": s.block_size,
            "fraction": s.blocks_used * 1024 // s.blocks_total / 1024,
        },
        is_live=True,
    ),
    Family(
        "nv_trt_llm_request_metrics",
        GAUGE,
        "Requests, in the form of TensorRT-LLM's backend: `waiting` to be admitted, and `scheduled`, which run. "
        "Kubernetes' endpoint pickers read it.",
        label="request_type",
        read=lambda s: {"waiting": s.waiting, "scheduled": s.running},
        is_live=True,
    ),
    # Metrics are updated in this order, so when this one is new, no other metric is older.
    _value(
        "inflight:last_update_time_seconds",
        GAUGE,
        "When these metrics were last updated, in seconds since 1970.",
        lambda s: s.time,
    ),
)

_VLLM_TOO = frozenset(
    f"inflight:{name}"
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("request_success_total", "prompt_tokens_total", "generation_tokens_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "iteration_tokens_total"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
        *("request_queue_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
        *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
    )
)
VLLM_FAMILIES = tuple(
    replace(family, name=family.name.replace("inflight:", "vllm:"), help=f"`{family.name}` by vLLM's name.")
    for family in FAMILIES
    if family.name in _VLLM_TOO
)
"""The metrics that vLLM has too, by its names, for dashboards and routers that know vLLM."""
VLLM_CACHE_INFO = "vllm:cache_config_info"
"""A gauge that is 1. Its labels are the settings of the KV cache."""
