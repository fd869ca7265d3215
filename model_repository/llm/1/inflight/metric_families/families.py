"""Every metric of the server, in the order in which they are updated and documented.

`docs/reference/metrics.md` is generated from these tables. A metric that vLLM also has bears vLLM's name, with our
prefix.
"""

from dataclasses import replace

from inflight.metric_families.family import GAUGE, value
from inflight.metric_families.guided_decoding import GUIDED_DECODING
from inflight.metric_families.images import IMAGES
from inflight.metric_families.kv_cache import BLOCKS, EVENTS, PREFIXES
from inflight.metric_families.kv_transfer import KV_TRANSFER
from inflight.metric_families.lora import LORA
from inflight.metric_families.requests import ENDED, PRESENT, TIMES_AND_LENGTHS
from inflight.metric_families.scheduler import LEARNED
from inflight.metric_families.speculation import SPECULATION
from inflight.metric_families.steps import STEPS
from inflight.metric_families.tenants import TENANTS
from inflight.metric_families.tensorrt_llm import TENSORRT_LLM

FAMILIES = (
    *PRESENT,
    *BLOCKS,
    *ENDED,
    *PREFIXES,
    *STEPS,
    *TIMES_AND_LENGTHS,
    *GUIDED_DECODING,
    *IMAGES,
    *SPECULATION,
    *LORA,
    *EVENTS,
    *KV_TRANSFER,
    *LEARNED,
    *TENANTS,
    *TENSORRT_LLM,
    value(
        "inflight:start_time_seconds",
        GAUGE,
        "When the engine was created, in seconds since 1970. It changes with each restart of the model, whatever the "
        "model did before.",
        lambda s: s.started,
    ),
    # Metrics are updated in this order, so when this one is new, no other metric is older.
    value(
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
VLLM_LORA_INFO = "vllm:lora_requests_info"
"""A gauge with the time at which its labels became true. They are the adapters of running and of waiting requests, and
how many fit in memory. It exists only with `lora_modules` or `lora_folder`."""
